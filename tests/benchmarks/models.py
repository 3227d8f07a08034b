"""ONNX models on the CPU beside onnxruntime with as many threads:
`python tests/benchmarks/models.py model.onnx other.onnx@x=1x3x64x96,y=1x7`.

Both run in this process, by turns, in batches of runs; of each the best time counts, since what else the machine does
only adds to it. Sizes that are free and not given are 1. Floats are random, integers 1. A row tells milliseconds, ours
over onnxruntime's, and the largest difference of results over what two correct executions may differ by (1e-4 absolute
plus 1e-3 relative); above 1 the exit status is 1.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.contract.constants import NEWEST
from app.engine.graphs import GraphRequest
from app.engine.service import Service
from app.graphs.descriptor import GraphDesc
from app.memory.arrays import numpy_type
from app.models.onnx.importer import Imported, import_model
from app.models.onnx.reading import read_model, signature
from app.settings import Settings

Array = np.ndarray[Any, Any]
Run = Callable[[], dict[str, Array]]


def inputs_of(model: Any, sizes: dict[str, list[int]]) -> dict[str, Array]:
    """By name; the same in every run of this file."""
    random = np.random.default_rng(0)
    made = {}
    for name, port in signature(model).inputs.items():
        own = sizes.get(name) or [each if isinstance(each, int) else 1 for each in port.sizes or ()]
        floats = port.type.startswith("float")
        made[name] = np.asarray(random.standard_normal(own) * 0.3 if floats else np.ones(own), port.type)
    return made


def prepared(service: Service, imported: Imported, inputs: dict[str, Array]) -> Run:
    """What runs the graph."""
    desc = GraphDesc.model_validate(imported.graph.document)
    request = GraphRequest(desc, NEWEST, imported.graph.constants, {})
    graph = service.compiler.compile(request, lambda size: memoryview(bytearray(size)), lambda: False)
    kernel = service.devices["numpy"].prepare(graph.runnable)
    schedule = graph.runnable.schedule
    given = [inputs[name].reshape(-1).view(np.uint8).data.toreadonly() for name in schedule.inputs]
    made = {name: memoryview(bytearray(desc.total_bytes)) for name, desc in schedule.outputs.items()}
    outputs = [*made.values(), *([memoryview(bytearray(schedule.scratch_bytes))] if schedule.scratch_bytes else [])]

    def run() -> dict[str, Array]:
        kernel.dispatch(given, outputs, lambda: False)
        return {
            name: np.frombuffer(made[name], numpy_type(each.data_type), int(np.prod(each.sizes))).reshape(each.sizes)
            for name, each in imported.outputs.items()
        }

    return run


def best(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of each, by turns."""
    times = [float("inf")] * len(runs)
    for _ in range(rounds):
        for place, run in enumerate(runs):
            for _ in range(8):
                start = perf_counter()
                run()
                times[place] = min(times[place], perf_counter() - start)
    return times


def stated(given: str) -> tuple[Path, bytes, Any, dict[str, Array]]:
    """The model of an argument FILE@x=1x3x64x96,y=1x7, and inputs of these sizes for it."""
    path, _, text = given.partition("@")
    sizes = {
        name: [int(size) for size in own.split("x")]
        for name, own in (part.split("=") for part in text.split(",") if part)
    }
    file = Path(path)
    data = file.read_bytes()
    model = read_model(data, file.parent)
    return file, data, model, inputs_of(model, sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FILE or FILE@input=1x3x64x96,other=1x7")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="of 8 runs each")
    options = parser.parse_args()
    import onnxruntime

    service = Service(Settings(threads=options.threads, gpus="none", max_graph_nodes=1 << 16, max_tensor_bytes=1 << 30))
    service.open()
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = options.threads
    wrong = False
    print(f"onnxruntime {onnxruntime.__version__}, NumPy {np.__version__}, {options.threads} threads\n")
    print("| model | inputs | ms | onnxruntime ms | ratio | difference |\n|---|---|--:|--:|--:|--:|")
    for each in options.models:
        path, _, model, inputs = stated(each)
        session = onnxruntime.InferenceSession(path, chosen, providers=["CPUExecutionProvider"])
        wanted = dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs), strict=True))
        imported = import_model(model, {name: array.shape for name, array in inputs.items()})
        run = prepared(service, imported, inputs)
        made = run()
        difference = max(
            float(np.max(np.abs(made[name] - right) / (1e-4 + 1e-3 * np.abs(right)))) for name, right in wanted.items()
        )
        wrong |= not difference <= 1
        ours, theirs = best([run, lambda: session.run(None, inputs)], options.rounds)  # noqa: B023 - called at once
        shapes = ", ".join("x".join(map(str, array.shape)) for array in inputs.values())
        print(
            f"| {path.name} | {shapes} | {ours * 1e3:.3f} | {theirs * 1e3:.3f} | {ours / theirs:.2f} "
            f"| {difference:.1e} |",
            flush=True,
        )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
