"""Names that were probably meant."""

import pytest

from app.contract.constants import DataType, ReduceFunction
from app.contract.suggestions import _ELSEWHERE, did_you_mean
from app.contract.tensors import TensorDesc
from app.operators.catalog import OPERATORS

SHORT = [name.removeprefix("DML_OPERATOR_").lower() for name in OPERATORS]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("celu", "activation_celu"),
        ("CELU", "activation_celu"),
        ("relu", "activation_relu"),  # and neither activation_leaky_relu nor activation_relu_grad
        ("hard_sigmoid", "activation_hard_sigmoid"),
        ("add", "element_wise_add"),  # which is less like it than "padding" is
        ("activation_celuu", "activation_celu"),
        ("elu_", None),
        ("_", None),
        ("activation_celu", None),
        ("nothing of the kind", None),
        ("", None),
        ("x" * 81, None),
        (7, None),
    ],
)
def test_operators(given: object, meant: str | None) -> None:
    assert did_you_mean(given, SHORT) == (f" Did you mean {meant}?" if meant else "")


def test_the_case_is_that_of_the_known_one() -> None:
    assert did_you_mean("celu", ["ACTIVATION_ELU", "ACTIVATION_CELU"]) == " Did you mean ACTIVATION_CELU?"
    assert did_you_mean("inputtensr", ["InputTensor", "inputtensor"]) == " Did you mean InputTensor?"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("conv2d", "CONVOLUTION"),
        ("MatMul", "GEMM"),
        ("concat", "JOIN"),  # which is less like it than "cast" is
        ("max", "ELEMENT_WISE_MAX"),  # which is longer than MAX_POOLING
        ("equal", "ELEMENT_WISE_LOGICAL_EQUALS"),
        ("quantizeLinear", "ELEMENT_WISE_QUANTIZE_LINEAR"),
        ("hardSigmoid", "ACTIVATION_HARD_SIGMOID"),
        ("TopK", "TOP_K"),
        ("DML_OPERATOR_RELU", "ACTIVATION_RELU"),
    ],
)
def test_operators_of_webnn_and_onnx(given: str, meant: str) -> None:
    for names in (SHORT, list(OPERATORS)):
        assert did_you_mean(given, names).upper().replace("DML_OPERATOR_", "") == f" DID YOU MEAN {meant}?"


def test_what_others_call_it_leads_to_a_name_that_there_is() -> None:
    known = {name.upper() for name in SHORT} | {str(each) for each in DataType} | {str(each) for each in ReduceFunction}
    fields = {name for operator in OPERATORS.values() for name in operator.model_fields} | set(TensorDesc.model_fields)
    assert (known | fields).issuperset(_ELSEWHERE)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("float", DataType.FLOAT32), ("fp16", DataType.FLOAT16), ("bool", DataType.UINT8), ("Int32", DataType.INT32)],
)
def test_data_types(given: str, meant: DataType) -> None:
    assert did_you_mean(given, map(str, DataType)) == f" Did you mean {meant}?"


@pytest.mark.parametrize("given", ["6.4", "6-4", "64"])
def test_feature_levels(given: str) -> None:
    assert did_you_mean(given, ["6_3", "6_4"]) == " Did you mean 6_4?"


def test_fields_in_the_other_way_to_write_words() -> None:
    assert did_you_mean("data_type", ["DataType", "Sizes"]) == " Did you mean DataType?"
    assert did_you_mean("featureLevel", ["feature_level"]) == " Did you mean feature_level?"
    assert did_you_mean("kernel_shape", ["DimensionCount", "WindowSize"]) == " Did you mean WindowSize?"
    assert did_you_mean("dtype", ["data", "datatype"]) == " Did you mean datatype?"
    assert did_you_mean("Size", ["TotalTensorSizeInBytes", "Sizes"]) == " Did you mean Sizes?"
