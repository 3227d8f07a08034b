"""What a GPU computes of a step at once, with NumPy in the place of CuPy."""

from typing import Any

import numpy as np
import pytest

from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX, Operator
from app.operators.recurrent.networks import Lstm
from app.operators.recurrent.steps import Recurrent


class Cupy:
    """Counts what is fused, which it may refuse."""

    __name__ = "cupy"

    def __init__(self, *, refuses: bool) -> None:
        self.refuses, self.fused = refuses, 0

    def fuse(self, function: Any) -> Any:
        def made(*arrays: Any) -> Any:
            if self.refuses:
                raise TypeError("of what it does not know")
            self.fused += 1
            return function(*arrays)

        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def lstm() -> Recurrent:
    def desc(*sizes: int) -> dict[str, Any]:
        return {"DataType": "FLOAT32", "Sizes": list(sizes)}

    activations: list[dict[str, Any]] = [
        {"Type": f"DML_OPERATOR_ACTIVATION_{name}"} for name in ("SIGMOID", "TANH", "TANH")
    ]
    activations[1] = {"Type": "DML_OPERATOR_ACTIVATION_SCALED_TANH", "Alpha": 0.3, "Beta": 1e-9}
    members = {
        "Type": PREFIX + "LSTM",
        "InputTensor": desc(1, 3, 2, 4),
        "WeightTensor": desc(1, 1, 20, 4),
        "RecurrenceTensor": desc(1, 1, 20, 5),
        "OutputSequenceTensor": desc(3, 1, 2, 5),
        "ActivationDescs": activations,
        "Direction": "FORWARD",
        "ClipThreshold": 0.123456789,
        "UseClipThreshold": True,
        "CoupleInputForget": False,
    }
    made: Operator = OPERATORS[PREFIX + "LSTM"].model_validate(members)
    assert isinstance(made, Lstm)
    return made


@pytest.mark.parametrize("refuses", [False, True])
def test_a_step_is_the_same_at_once(monkeypatch: pytest.MonkeyPatch, *, refuses: bool) -> None:
    """And operation by operation, where CuPy does not fuse it. It is fused once for all steps and dispatches."""
    monkeypatch.setattr("app.operators.recurrent.steps.product", lambda xp, a, b: np.matmul(a, b))
    monkeypatch.setattr("app.operators.recurrent.networks.multiplied", lambda xp, a, b: np.matmul(a, b))
    rng = np.random.default_rng(1)
    operator, cupy = lstm(), Cupy(refuses=refuses)
    inputs = {
        name: rng.standard_normal(desc.Sizes, np.float32)
        for name, desc in operator.tensors().items()
        if name not in operator.output_names()
    }
    right = operator.call(np, inputs)["OutputSequenceTensor"]
    for _ in range(2):
        np.testing.assert_array_equal(operator.call(cupy, inputs)["OutputSequenceTensor"], right)
    assert cupy.fused == (0 if refuses else 6)
