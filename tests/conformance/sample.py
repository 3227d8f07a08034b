"""Makes cases/others.jsonl.gz: small cases of a conformance folder for operators of other families than the two.

    python tests/conformance/sample.py FOLDER

The same folder gives the same file, byte for byte.
"""

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]

SAMPLE = Path(__file__).parent / "cases" / "others.jsonl.gz"
LONGEST = 3000
"""Characters of a case's line, of which tensors are nearly all."""
LEAST = 3
"""Cases for each operator and class of data types, if there are so many."""

CLASSES = {"FLOAT32": "float", "FLOAT16": "half"}
"""All others are whole numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds cases/*-other.jsonl.gz")
    lines = sample(parser.parse_args().folder / "cases")
    SAMPLE.parent.mkdir(exist_ok=True)
    SAMPLE.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    print(f"{len(lines)} cases, {SAMPLE.stat().st_size} bytes")


def sample(cases: Path) -> list[str]:
    """Lines of the chosen cases, by operator and class."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(cases.glob("*-other.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True):
            case = json.loads(line)
            groups[case["operator"], class_of(case)].append(line)
    return [line for _, group in sorted(groups.items()) for line in chosen(group)]


def class_of(case: Case) -> str:
    first = (tensors_of(case) or outputs_of(case))[0]
    return CLASSES.get(first["DataType"], "whole")


def chosen(group: list[str]) -> list[str]:
    """Case by case that with the most that none before it has, the shortest of these, until none has a choice anew."""
    rest = sorted(group, key=lambda line: (len(line), line))
    short = [line for line in rest if len(line) <= LONGEST] or rest[:1]
    traits = {line: set(traits_of(json.loads(line))) for line in short}
    choices = {line: set(choices_of(json.loads(line))) for line in short}
    seen: set[Hashable] = set()
    made: list[str] = []
    while short:
        if len(made) >= LEAST:
            short = [line for line in short if choices[line] - seen]
            if not short:
                break
        best = max(short, key=lambda line: len(traits[line] - seen))
        short.remove(best)
        made.append(best)
        seen |= traits[best]
    return made


def choices_of(case: Case) -> Iterator[Hashable]:
    """Enumerations and booleans."""
    for name, value in case["attributes"].items():
        if isinstance(value, str | bool):
            yield name, value


def traits_of(case: Case) -> Iterator[Hashable]:
    """What tells cases apart: attributes, tensors that are there, their types, ranks and layouts."""
    yield from choices_of(case)
    for name, value in case["attributes"].items():
        yield name, json.dumps(value)
    for name, tensor in case["tensors"].items():
        yield name
        for each in tensor if isinstance(tensor, list) else [tensor]:
            yield name, each["DataType"], len(each["Sizes"]), each["Strides"] is None
    for output in outputs_of(case):
        yield output["name"], output.get("index"), output["DataType"]


def tensors_of(case: Case) -> list[Any]:
    return [each for tensor in case["tensors"].values() for each in (tensor if isinstance(tensor, list) else [tensor])]


def outputs_of(case: Case) -> list[Any]:
    return case.get("outputs") or [case["output"]]


if __name__ == "__main__":
    main()
