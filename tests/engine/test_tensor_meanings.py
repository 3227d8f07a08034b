"""What is said of tensors."""

from app.engine.capabilities import describe
from app.engine.tensor_meanings import _INPUTS, _OF_OPERATORS, _OUTPUTS, meaning
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX


def test_every_tensor_says_what_it_is_for() -> None:
    named: dict[str, set[str]] = {"input_tensor": set(), "output_tensor": set()}
    for operator in OPERATORS.values():
        fields = describe(operator)["fields"]
        for field in fields:
            if field["kind"] != "attribute":
                assert field["description"].startswith(meaning(operator, field["name"]))
                assert field["description"].endswith(".")
                assert "never written" not in field["description"]
                named[field["kind"]].add(field["name"])
        inputs = [each["description"] for each in fields if each["kind"] == "input_tensor"]
        assert len(set(inputs)) == len(inputs), f"{operator.short_name()}: two inputs are for the same"
    assert named == {"input_tensor": _INPUTS.keys(), "output_tensor": _OUTPUTS.keys()}
    assert all(
        tensors.keys() <= set(OPERATORS[PREFIX + name].tensor_names()) for name, tensors in _OF_OPERATORS.items()
    )
