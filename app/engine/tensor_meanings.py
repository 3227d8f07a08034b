"""What each tensor of an operator is for, in words."""

from app.operators.operator import Operator, Role

_INPUTS = {
    "AScaleTensor": "Scale of ATensor: what a step of its integers stands for.",
    "ATensor": "The first operand.",
    "AZeroPointTensor": "The integer of ATensor that stands for 0.",
    "BScaleTensor": "Scale of BTensor: what a step of its integers stands for.",
    "BTensor": "The second operand.",
    "BZeroPointTensor": "The integer of BTensor that stands for 0.",
    "BatchIndicesTensor": "For each region, which item of the batch it lies in.",
    "BiasTensor": "Added to the elements once they are normalized and scaled.",
    "CTensor": "Added to the products, times Beta.",
    "CellMemInitTensor": "The cell's state before the first step; 0 without it.",
    "ConditionTensor": "Where it is not 0, the element of ATensor is taken, else that of BTensor.",
    "ExponentTensor": "The exponents.",
    "FilterScaleTensor": "Scale of FilterTensor: what a step of its integers stands for.",
    "FilterTensor": "The weights of the window, for each channel that is made and each that is read.",
    "FilterZeroPointTensor": "The integer of FilterTensor that stands for 0.",
    "FusedAddTensor": "Added to the result, before the activation.",
    "GradientTensor": "Gradient of the parameters.",
    "HiddenInitTensor": "The hidden state before the first step; 0 without it.",
    "IndicesTensor": "Positions of the elements that are read.",
    "InputFirstMomentTensor": "The running mean of the gradients before this step.",
    "InputGradientTensor": "Gradient of the output of the operator whose gradient this computes.",
    "InputParametersTensor": "The parameters that are trained.",
    "InputScaleTensor": "Scale of InputTensor: what a step of its integers stands for.",
    "InputSecondMomentTensor": "The running mean of the gradients' squares before this step.",
    "InputStateTensor": "Counter and key that the numbers follow from.",
    "InputTensor": "What the operator is applied to.",
    "InputTensors": "The tensors that are joined, in this order.",
    "InputZeroPointTensor": "The integer of InputTensor that stands for 0.",
    "KeyTensor": "The keys.",
    "MaskTensor": "Which keys a query may see, as MaskType says.",
    "MeanTensor": "The means that are subtracted.",
    "OutputScaleTensor": "Scale of the output: what a step of its integers stands for.",
    "OutputZeroPointTensor": "The integer of the output that stands for 0.",
    "PastKeyTensor": "The keys of earlier calls, which come before the new ones.",
    "PastSequenceLengthsTensor": "For each item of the batch, how many keys and values of earlier calls are valid.",
    "PastValueTensor": "The values of earlier calls, which come before the new ones.",
    "PeepholeTensor": "Weights of the cell's state in the gates; 0 without it.",
    "QuantizationTensors": "The scale and, if there are two, the zero point.",
    "QueryTensor": "The queries.",
    "ROITensor": "The regions, each by its corners.",
    "RecurrenceTensor": "Weights of the hidden state, gate after gate.",
    "RelativePositionBiasTensor": "Added to the products of queries and keys.",
    "ScaleTensor": "Factor of the elements once they are normalized.",
    "SequenceLengthsTensor": "For each item of the batch, how many steps its sequence has; all without it.",
    "SlopeTensor": "Factor of the elements below 0.",
    "StackedKeyValueTensor": "Keys and values in one tensor, in place of KeyTensor and ValueTensor.",
    "StackedQueryKeyTensor": "Queries and keys in one tensor, in place of QueryTensor and KeyTensor.",
    "StackedQueryKeyValueTensor": "Queries, keys and values in one tensor, in place of those three.",
    "TrainingStepTensor": "The number of this step, t.",
    "UpdatesTensor": "What is written at the positions.",
    "ValueTensor": "The values.",
    "ValuesTensor": "OffValue, then OnValue.",
    "VarianceTensor": "The variances, by whose square roots elements are divided.",
    "WeightTensor": "Weights of the input, gate after gate.",
    "ZeroPointTensor": "The integer that stands for 0.",
}

_OUTPUTS = {
    "OutputBiasGradientTensor": "Gradient of the bias.",
    "OutputCellSingleTensor": "The cell's state after the last step.",
    "OutputCoordinatesTensor": "The coordinates of the elements that are not 0, one row each.",
    "OutputCountTensor": "How many elements are not 0.",
    "OutputFirstMomentTensor": "The running mean of the gradients after this step.",
    "OutputGradientTensor": "Gradient of the input.",
    "OutputIndexTensor": "The positions of the values.",
    "OutputIndicesTensor": "For each maximum, its place in the input, row-major.",
    "OutputMeanTensor": "The means of the batch.",
    "OutputParametersTensor": "The parameters after this step.",
    "OutputPresentKeyTensor": "The keys of earlier calls and of this one, for the next call.",
    "OutputPresentValueTensor": "The values of earlier calls and of this one, for the next call.",
    "OutputROIGradientTensor": "Gradient of the regions.",
    "OutputScaleGradientTensor": "Gradient of the scale.",
    "OutputScaleTensor": "The scale that was found.",
    "OutputSecondMomentTensor": "The running mean of the gradients' squares after this step.",
    "OutputSequenceTensor": "The hidden state after each step.",
    "OutputSingleTensor": "The hidden state after the last step.",
    "OutputStateTensor": "The state that the next numbers follow from.",
    "OutputTensor": "The result.",
    "OutputTensors": "The parts, in their order.",
    "OutputValueTensor": "The values, in their order.",
    "OutputVarianceTensor": "The variances of the batch.",
    "OutputZeroPointTensor": "The zero point that was found.",
}

_MATRICES = {"ATensor": "The left matrices.", "BTensor": "The right matrices."}
_WINDOWS = {"BiasTensor": "Added to all elements of a channel, one element for each."}
_GATES = {"BiasTensor": "Biases of the gates, those of the input before those of the hidden state; 0 without it."}
_ATTENTION = {"BiasTensor": "Added to queries, keys and values, which it is for one after the other."}
_WRITTEN = {
    "IndicesTensor": "Positions of the elements that are written.",
    "InputTensor": "What the output has where nothing is written.",
}
_QUANTIZED = {"ScaleTensor": "What a step of the integers stands for."}
_FORWARD = "The input of the operator whose gradient this computes."

_OF_OPERATORS = {
    "ACTIVATION_RELU_GRAD": {"InputTensor": _FORWARD},
    "BATCH_NORMALIZATION_GRAD": {"InputTensor": _FORWARD, "ScaleTensor": "The scale of the normalization."},
    "BATCH_NORMALIZATION_TRAINING_GRAD": {"InputTensor": _FORWARD, "ScaleTensor": "The scale of the normalization."},
    "CONVOLUTION": _WINDOWS,
    "DIAGONAL_MATRIX1": {"InputTensor": "What the output has off the diagonals; 0 without it."},
    "ELEMENT_WISE_CLIP_GRAD": {"InputTensor": _FORWARD},
    "ELEMENT_WISE_CLIP_GRAD1": {"InputTensor": _FORWARD},
    "ELEMENT_WISE_DEQUANTIZE_LINEAR": _QUANTIZED,
    "ELEMENT_WISE_POW": {"InputTensor": "The bases."},
    "ELEMENT_WISE_QUANTIZE_LINEAR": _QUANTIZED,
    "GEMM": _MATRICES,
    "GRU": _GATES,
    "LOCAL_RESPONSE_NORMALIZATION_GRAD": {"InputTensor": _FORWARD},
    "LSTM": _GATES,
    "MATRIX_MULTIPLY_INTEGER": _MATRICES,
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT": _MATRICES | {"BiasTensor": "Added to the products."},
    "MAX_POOLING_GRAD": {"InputTensor": _FORWARD},
    "MAX_UNPOOLING": {"IndicesTensor": "For each element, its place in the output, row-major."},
    "MULTIHEAD_ATTENTION": _ATTENTION,
    "MULTIHEAD_ATTENTION1": _ATTENTION,
    "ONE_HOT": {"IndicesTensor": "For each sequence along Axis, where its OnValue stands."},
    "QUANTIZED_LINEAR_CONVOLUTION": _WINDOWS,
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY": _MATRICES,
    "REVERSE_SUBSEQUENCES": {"SequenceLengthsTensor": "For each sequence, how many of its elements are reversed."},
    "RNN": _GATES,
    "ROI_ALIGN_GRAD": {"InputTensor": _FORWARD},
    "SCATTER": _WRITTEN,
    "SCATTER_ND": _WRITTEN,
}
"""Where a tensor is for something else than its namesakes."""


def meaning(operator: type[Operator], tensor: str) -> str:
    """What the field `tensor` of `operator` is for."""
    of_all = _INPUTS if tensor in operator.tensor_names(Role.INPUT) else _OUTPUTS
    return _OF_OPERATORS.get(operator.short_name(), {}).get(tensor, of_all[tensor])
