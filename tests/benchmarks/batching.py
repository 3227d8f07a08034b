"""What `--max-batch` gives: requests/s of clients of one model, with it over without it.

The model is layers of products, whose weights are read once for a batch and not once for each row. Two servers run, one
with `--max-batch`, and are measured by turns with each number of clients. Before, some answers of both are checked, one
alone and 64 of 16 clients. Exits with 1 if one was wrong or a timed request failed. Needs the `onnx` package and wrk.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import load
import numpy as np
import options
import report
import servers

Array = np.ndarray[Any, Any]


def model_of(width: int, layers: int) -> tuple[bytes, list[Array]]:
    """The file of so many square layers, each followed by Relu, and their weights."""
    from onnx import numpy_helper, parser

    random = np.random.default_rng(0)
    weights = [(random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(layers)]
    text = ""
    for layer in range(layers):
        before, after = "x" if layer == 0 else f"r{layer - 1}", "y" if layer == layers - 1 else f"r{layer}"
        text += f" m{layer} = MatMul({before}, w{layer}) {after} = Relu(m{layer})"
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> m (float[batch,{width}] x) => (float[batch,{width}] y) {{{text} }}'
    )
    made.graph.initializer.extend(numpy_helper.from_array(each, f"w{n}") for n, each in enumerate(weights))
    return made.SerializeToString(), weights


def check(request: load.Request, expected: Array) -> None:
    """Raises LoadError if the answer is not `expected`."""
    answer = load.send(request)
    made = np.frombuffer(answer[-expected.nbytes :], np.float32)
    if not np.allclose(made, expected, rtol=1e-3, atol=1e-4):
        raise load.LoadError(f"{request.url} answered wrongly")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=options.bounded(1 << 13), default=1024)
    parser.add_argument("--layers", type=options.bounded(64), default=4)
    parser.add_argument("--clients", type=options.listed(options.bounded(256)), default=[1, 4, 16])
    parser.add_argument("--max-batch", type=options.bounded(1 << 10), default=16)
    parser.add_argument("--rounds", type=options.bounded(100), default=5)
    parser.add_argument("--seconds", type=options.bounded(60), default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(argv)
    options.end_on_signals()
    load.require_wrk()
    facts = report.facts(os.getloadavg()[0])
    data, weights = model_of(arguments.width, arguments.layers)
    x = np.random.default_rng(1).standard_normal((1, arguments.width)).astype(np.float32)
    expected: Array = x
    for each in weights:
        expected = np.maximum(expected @ each, 0)
    rows: list[list[str]] = []
    failures: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batching-")))
        (folder / "models").mkdir()
        (folder / "models" / "layers.onnx").write_bytes(data)
        tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body = folder / "body"
        body.write_bytes(head + x.tobytes())
        # Powers of two are compiled ahead: until they are, requests are run one by one.
        batches = [1 << n for n in range(arguments.max_batch.bit_length())]
        given = ["--models", str(folder / "models")]
        given += [part for rows_ in batches for part in ("--warm", f"layers={rows_}x{arguments.width}")]
        requests = []
        for more in ([], ["--max-batch", str(arguments.max_batch)]):
            server = stack.enter_context(servers.service([*given, *more]))
            requests.append(load.Request(f"{server.url}/v2/models/layers/infer", "infer", body, len(head)))
        try:
            for request in requests:
                check(request, expected)
                with ThreadPoolExecutor(16) as clients:
                    list(clients.map(lambda _, request=request: check(request, expected), range(64)))
            for clients_ in arguments.clients:
                rates: list[tuple[float, float]] = []
                latencies: list[tuple[float, float]] = []
                for _ in range(arguments.rounds):
                    loads = [load.run(request, clients_, arguments.seconds) for request in requests]
                    rates.append((loads[0].rate, loads[1].rate))
                    latencies.append((loads[0].p99_ms, loads[1].p99_ms))
                ratios = sorted(after / before for before, after in rates)
                numbers = [*map(statistics.median, zip(*rates, strict=True)), statistics.median(ratios)]
                numbers += [ratios[0], ratios[-1], *map(statistics.median, zip(*latencies, strict=True))]
                rows.append([str(clients_), *map(report.number, numbers)])
                options.progress(f"{clients_} clients: {report.number(statistics.median(ratios))}")
        except load.LoadError as error:
            failures.append(str(error))
    title = f"{arguments.layers} layers of {arguments.width} x {arguments.width}, a row to a request"
    columns = ["clients", "one by one /s", f"--max-batch {arguments.max_batch} /s", "**ratio**", "least", "most"]
    columns += ["p99 ms", "p99 ms with it"]
    medians = f"Medians over {arguments.rounds} rounds of {arguments.seconds} s."
    text = (
        f"# Batching benchmark\n\n{facts}\n{title}. {medians}\n\n"
        f"{report.table(columns, rows, texts=1)}{report.failures(failures)}"
    )
    report.publish(text, arguments.output)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
