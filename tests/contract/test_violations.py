"""What a refusal says to those who get no pointer."""

import pytest

from app.contract.violations import Path, Violation


@pytest.mark.parametrize(
    ("path", "message", "placed"),
    [
        ((), "The document is 1.", None),
        (("operator",), "operator is 1.", None),
        (("operator", "Alpha"), "Alpha is 0.", None),
        (("operator", "Scales", 1), "Scales[1] is 0.", None),
        (("operator", "InputTensor", "Sizes"), "Sizes is 1.", "InputTensor: Sizes is 1."),
        (("operator", "InputTensor", "Sizes", 1), "Sizes[1] is 0.", "InputTensor: Sizes[1] is 0."),
        (("operator", "InputTensors", 1, "Sizes"), "Sizes is 1.", "InputTensors[1]: Sizes is 1."),
        (("operator", "InputTensor", "Sizes"), "InputTensor has Sizes [1].", None),
        (("operator", "InputTensor", "Sizes"), "Sizes of InputTensor has 1.", None),
        (("operator", "InputTensor", "Sizes"), "An input's Sizes is 1.", None),
        (("graph", "Nodes", 0), "InputTensor of Nodes[0] has no edge.", None),
        (("graph", "Nodes", 0, "Desc", "Alpha"), "Alpha is 0.", "Nodes[0].Desc: Alpha is 0."),
        (("inputs", "X"), "X is missing.", None),
        (("outputs", "X"), "X is missing.", None),
        (("parameters", "X"), "X is missing.", None),
        (("inputs", "X", "shape"), "shape is 1.", "inputs.X: shape is 1."),
        ((0, "key"), "key is 1.", "[0]: key is 1."),
    ],
)
def test_a_field_is_told_with_what_it_is_in_unless_the_message_says_so(
    path: Path, message: str, placed: str | None
) -> None:
    assert Violation(path, message).placed_message == (placed or message)
