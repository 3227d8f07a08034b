"""What a GPU computes of a step: kernels of the cells' formulas, built for the CPU, with NumPy in the place of CuPy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.cuda.kernels import CudaKernel
from app.memory.arrays import Array
from app.operators import written
from app.operators.catalog import OPERATORS
from app.operators.operator import PREFIX
from app.operators.recurrent.cells import GIVEN, HIDDEN, in_arrays
from app.operators.recurrent.steps import Recurrent
from app.programs.dispatchable import Dispatchable
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu, Stream
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels
from tests.devices.test_cuda_compiler import assembly_of
from tests.gpu import first_gpu
from tests.operators import calls
from tests.operators.arrays import desc_of
from tests.operators.descriptors import descriptor
from tests.operators.recurrent.test_networks import GATES, check, request

ACTIVATIONS = {
    "RNN": ["TANH"],
    "LSTM": ["SIGMOID", "SCALED_TANH", "TANH"],
    "GRU": ["SIGMOID", "TANH"],
}
SCALED: dict[str, Any] = {"Alpha": 0.3, "Beta": 1e-9}


class Cupy:
    __name__ = "cupy"
    cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def network(kind: str, **members: Any) -> Recurrent:
    activations = [
        {"Type": f"DML_OPERATOR_ACTIVATION_{name}"} | (SCALED if name == "SCALED_TANH" else {})
        for name in ACTIVATIONS[kind]
    ]
    whole = descriptor(PREFIX + kind) | {"ActivationDescs": activations} | members
    operator = OPERATORS[PREFIX + kind].model_validate(whole)
    assert isinstance(operator, Recurrent)
    return operator


NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("LSTM", {"UseClipThreshold": True, "ClipThreshold": 0.123456789, "CoupleInputForget": False}),
    ("LSTM", {"PeepholeTensor": None, "CoupleInputForget": True, "SequenceLengthsTensor": None}),
    ("GRU", {"LinearBeforeReset": True}),
    ("GRU", {"LinearBeforeReset": False, "SequenceLengthsTensor": None}),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> BuiltKernels:
    return BuiltKernels(Path(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def launched(kernels: BuiltKernels, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Array]]:
    """What kernels made, on a device that has kernels of formulas, and whose arrays are NumPy's."""
    made: list[tuple[str, Array]] = []
    device = CudaDeviceOnCpu(kernels)

    def load(compiled: Dispatchable) -> Callable[[Sequence[Array]], None]:
        (output,) = compiled.outputs
        bind = CudaKernel(compiled, output, device).bind_again()

        def queue(arrays: Sequence[Array]) -> None:
            made.append((output, arrays[-1]))
            bind([each.ctypes.data for each in arrays])(Stream([]))

        return queue

    monkeypatch.setitem(written.FORMULA_LOADERS, 0, load)
    return made


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("kind", "members"), NETWORKS)
def test_kernels_make_what_numpy_makes(
    kind: str, members: dict[str, Any], launched: list[tuple[str, Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each formula, of all steps."""
    monkeypatch.setattr("app.operators.recurrent.stepping.product", lambda xp, a, b: np.matmul(a, b))
    monkeypatch.setattr("app.operators.recurrent.stepping.multiplied", lambda xp, a, b: np.matmul(a, b))
    monkeypatch.setattr("app.operators.recurrent.stepping.for_blas", lambda xp, a: a)
    rng = np.random.default_rng(1)
    sizes = {"InputTensor": [1, 3, 2, 4], "SequenceLengthsTensor": [1, 1, 1, 2]}
    gates, state = GATES[kind], [1, 1, 2, 5]
    sizes |= {"WeightTensor": [1, 1, 5 * gates, 4], "RecurrenceTensor": [1, 1, 5 * gates, 5]}
    sizes |= {"BiasTensor": [1, 1, 1, 10 * gates], "PeepholeTensor": [1, 1, 1, 15]}
    sizes |= dict.fromkeys(("HiddenInitTensor", "CellMemInitTensor", "OutputSingleTensor"), state)
    sizes |= {"OutputSequenceTensor": [3, 1, 2, 5], "OutputCellSingleTensor": state}
    stated = network(kind, **members).tensors()
    tensors = {name: desc.model_dump() | {"Sizes": sizes[name]} for name, desc in stated.items()}
    operator = network(kind, **members | tensors)
    inputs: dict[str, Array] = {
        name: rng.standard_normal(sizes[name], np.float32) for name in tensors if name not in operator.output_names()
    }
    if "SequenceLengthsTensor" in inputs:
        inputs["SequenceLengthsTensor"] = np.array([2, 3], np.uint32).reshape(sizes["SequenceLengthsTensor"])
    right = operator.call(np, inputs)
    found = operator.call(Cupy(), inputs)
    for name, each in right.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-6, atol=1e-7)
    stages = [stage.made for each in operator.cell(0, in_arrays).rounds for stage in each.stages]
    assert [made for made, _ in launched] == [GIVEN] * 2 + stages * 3
    states = [array for made, array in launched if made == HIDDEN]
    assert all(np.shares_memory(each, found["OutputSequenceTensor"]) for each in states), "nothing is copied there"


@pytest.mark.parametrize(("kind", "members"), NETWORKS)
def test_kernels_compile_without_float64(kind: str, members: dict[str, Any]) -> None:
    cell = network(kind, **members).cell(0, in_arrays)
    device: Any = CudaDeviceOnCpu(BuiltKernels(Path()))
    desc = TensorDesc(DataType=DataType.FLOAT32, Sizes=[2, 5])
    for made, program in cell.programs.items():
        compiled = Dispatchable(dict.fromkeys(program.inputs, desc), {made: desc}, program, cell.numbers)
        for source in CudaKernel(compiled, made, device).sources():
            assert ".f64" not in assembly_of(source, whole=True)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD", "BIDIRECTIONAL"])
@pytest.mark.parametrize("kind", GATES)
def test_networks_on_a_gpu(kind: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "DEVICE", first_gpu())
    rng = np.random.default_rng(3)
    for larger, more in (0, 0), (3, 12), (40, 28), (255, 5):
        check(rng, "float32", *request(rng, kind, "float32", direction, larger, more))


@pytest.mark.parametrize("device", [None, pytest.param("gpu", marks=pytest.mark.gpu)])
def test_subnormal_numbers_are_kept(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the input, in biases and in states, of one sequence that ends before the other."""
    if device:
        monkeypatch.setattr(calls, "DEVICE", first_gpu())
    least = np.finfo(np.float32).smallest_subnormal
    inputs: dict[str, Array | None] = {
        "InputTensor": np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2, 1) * least,
        "WeightTensor": np.ones((1, 1, 1, 1), np.float32),
        "RecurrenceTensor": np.ones((1, 1, 1, 1), np.float32),
        "BiasTensor": np.array([10, 20], np.float32).reshape(1, 1, 1, 2) * least,
        "HiddenInitTensor": np.full((1, 1, 2, 1), 100 * least, np.float32),
        "SequenceLengthsTensor": np.array([2, 3], np.uint32).reshape(1, 1, 1, 2),
    }
    document = {"Type": "RNN", "Direction": "FORWARD", "ActivationDescs": [{"Type": "ACTIVATION_IDENTITY"}]}
    output = {"OutputSingleTensor": desc_of(np.zeros((1, 1, 2, 1), np.float32))}
    made = calls.run(document | output, inputs)["OutputSingleTensor"]
    np.testing.assert_array_equal(made.ravel() / least, [100 + 1 + 3 + 60, 100 + 2 + 4 + 6 + 90])
