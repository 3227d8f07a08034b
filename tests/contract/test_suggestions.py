"""Names that were probably meant."""

import pytest

from app.contract.suggestions import did_you_mean
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
