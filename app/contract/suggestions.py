"""Names that were probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from re import sub

_LONGEST = 80
_SHORT = 8
"""Letters of a word that one of them wrong makes less like itself than a long name."""

_ELSEWHERE = {
    "SLICE1": "reverse",
    "GEMM": "matmul",
    "JOIN": "concat",
    "CONVOLUTION": "conv conv2d convtranspose convtranspose2d",
    "QUANTIZED_LINEAR_CONVOLUTION": "qlinearconv",
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY": "qlinearmatmul",
    "AVERAGE_POOLING": "globalaveragepool",
    "MAX_POOLING": "maxpool2d globalmaxpool",
    "LP_POOLING": "l2pool2d globallppool",
    "MEAN_VARIANCE_NORMALIZATION1": "layernormalization instancenormalization groupnormalization",
    "REDUCE": "reducemean reduceprod reduceproduct reducelogsum reducelogsumexp reducesumsquare",
    "RESAMPLE": "resize",
    "SCATTER": "scatterelements",
    "GRU": "grucell",
    "LSTM": "lstmcell",
    "DIAGONAL_MATRIX1": "triangular trilu eyelike",
    "FILL_VALUE_CONSTANT": "fill constantofshape",
    "FILL_VALUE_SEQUENCE": "range",
    "ACTIVATION_PARAMETERIZED_RELU": "prelu",
    "ELEMENT_WISE_IDENTITY": "identity expand transpose reshape flatten squeeze unsqueeze",  # with strides, or sizes
    "ELEMENT_WISE_SUBTRACT": "sub",
    "ELEMENT_WISE_MULTIPLY": "mul",
    "ELEMENT_WISE_DIVIDE": "div",
    "ELEMENT_WISE_MAX": "max",
    "ELEMENT_WISE_NEGATE": "neg",
    "ELEMENT_WISE_RECIP": "reciprocal",
    "ELEMENT_WISE_ROUND": "roundeven",
    "ELEMENT_WISE_CLIP": "clamp",
    "ELEMENT_WISE_IF": "where",
    "ELEMENT_WISE_QUANTIZE_LINEAR": "quantizelinear",
    "ELEMENT_WISE_LOGICAL_EQUALS": "equal notequal",
    "ELEMENT_WISE_LOGICAL_LESS_THAN": "less lesser",
    "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL": "lessorequal lesserorequal",
    "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL": "greaterorequal",
    "ELEMENT_WISE_LOGICAL_NOT": "not",
    "ELEMENT_WISE_LOGICAL_AND": "and",
    "ELEMENT_WISE_LOGICAL_OR": "or",
    "ELEMENT_WISE_LOGICAL_XOR": "xor",
    "AVERAGE": "mean",
    "FLOAT32": "float fp32 f32",
    "FLOAT16": "half fp16 f16",
    "FLOAT64": "double fp64 f64",
    "INT32": "int",
    "INT64": "long",
    "UINT8": "bool boolean byte",
    "DataType": "dtype",
    "Sizes": "shape dims",
    "WindowSize": "kernelsize kernelshape windowdimensions",
    "StartPadding": "pads padding",
    "GroupCount": "group groups",
}
"""DirectML's names, and what WebNN, ONNX and NumPy call the same, where that is not like it or more like another."""

_MEANT = {word: name.lower().replace("_", "") for name, words in _ELSEWHERE.items() for word in words.split()}


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """ " Did you mean ELEMENT_WISE_ADD?" where one of the `known` names is what others call `given`, or has it, however
    it is written, as one or more of its parts, or is like it, else nothing."""
    return _suggestion(given, tuple(known)) if isinstance(given, str) and 0 < len(given) <= _LONGEST else ""


@lru_cache(256)
def _suggestion(given: str, known: tuple[str, ...]) -> str:
    if given in known:
        return ""
    asked = _words(given)
    by_words = {_words(name): name for name in reversed(known)}
    if elsewhere := _MEANT.get(asked.replace("_", "")):
        for words, name in by_words.items():
            if words.replace("_", "") == elsewhere:
                return f" Did you mean {name}?"
    if asked in by_words:
        return f" Did you mean {by_words[asked]}?"
    having = [name for name in known if f"_{asked}_" in f"_{name.lower()}_"]
    if having:
        return f" Did you mean {min(having, key=len)}?"
    likeness = 0.6 if given.isalpha() and len(given) <= _SHORT else 0.75
    lower = {name.lower(): name for name in reversed(known)}
    found = get_close_matches(given.lower(), lower, 1, likeness)
    return f" Did you mean {lower[found[0]]}?" if found else ""


def _words(name: str) -> str:
    """`name` in lower case, its words parted by underscores, without what all operators begin with: hard_sigmoid for
    HardSigmoid, 6_4 for 6.4."""
    parted = sub(r"(?<=[a-z\d])(?=[A-Z])|[.\s-]", "_", name)
    return parted.lower().removeprefix("dml_operator_")
