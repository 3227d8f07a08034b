"""Which nodes become one kernel, and where what is between kernels lies."""

import random
from collections.abc import Callable
from itertools import product
from operator import mul
from typing import Any

import pytest

from app.contract.constants import DataType
from app.formula.structures import Structures
from app.formula.values import Input
from app.formula.values import parts as values
from app.graphs.fusion import fuse
from app.graphs.graph import Constant, GraphInput, NodeOutput
from app.graphs.members import MOST_INPUTS, PlannedKernel
from app.graphs.places import most_alive, place_intervals
from app.graphs.position_groups import MOST_DEPTH
from app.graphs.schedule import ALIGNMENT, InitializedGraph, Room, Schedule, schedule
from app.graphs.spaces import Space
from app.programs.program import Program
from tests.graphs.documents import (
    OWNED,
    Document,
    X,
    add,
    between,
    chain,
    constant,
    graph,
    into,
    node,
    out,
    relu,
    resolved,
    tensor,
)


def parts(document: Document, data: dict[int, bytes] | None = None) -> list[PlannedKernel]:
    return fuse(resolved(document, data=data), Structures()).parts


def nodes(document: Document, data: dict[int, bytes] | None = None) -> list[tuple[int, ...]]:
    """Those of each kernel."""
    return [part.nodes for part in parts(document, data)]


def planned(document: Document, data: dict[int, bytes] | None = None) -> Schedule:
    return schedule(resolved(document, data=data), Structures())


def tanh(**members: Any) -> Document:
    return node("ACTIVATION_TANH", **members)


def softmax(sizes: tuple[int, ...] = (4, 6), axes: tuple[int, ...] = (1,), **members: Any) -> Document:
    return node("ACTIVATION_SOFTMAX1", InputTensor=tensor(sizes=sizes, **members), Axes=list(axes))


def identity(desc: Document, **members: Any) -> Document:
    return node("ELEMENT_WISE_IDENTITY", InputTensor=desc, **members)


def in_turn(*every: Document) -> Document:
    """Operators one after another."""
    edges = [between(number, number + 1) for number in range(len(every) - 1)]
    return graph([*every], [into(0, 0)], [out(len(every) - 1)], edges)


# What is one kernel


def test_a_chain_is_one_kernel() -> None:
    (part,) = parts(chain(7))
    assert part.nodes == tuple(range(7))
    assert part.reads == {"in0": GraphInput("0")}
    assert part.writes == {"out": NodeOutput(0, "OutputTensor")}


def test_a_diamond_is_one_kernel_that_computes_its_beginning_once() -> None:
    document = graph(
        [relu(), add(), add(), add()],
        [into(0, 0), into(1, 1, 1), into(2, 2, 1)],
        [out(3)],
        [between(0, 1), between(0, 2), between(1, 3), between(2, 3, 1)],
    )
    (part,) = parts(document)
    assert part.nodes == (0, 1, 2, 3)
    assert sorted(part.reads.values(), key=str) == [GraphInput("0"), GraphInput("1"), GraphInput("2")]
    loads = [each for each in values(part.dispatchable.program.maps["out"].expression) if isinstance(each, Input)]
    assert len(loads) == 3


@pytest.mark.parametrize(
    "reader",
    [
        tensor(sizes=(4, 2, 3), Strides=[0, 3, 1]),
        tensor(sizes=(3, 2), Strides=[1, 3]),
        tensor(sizes=(6,)),
        tensor(sizes=(3, 2), Strides=[2, 1]),
        tensor(sizes=(1, 6, 1)),
        tensor(sizes=(2, 5, 3), Strides=[3, 0, 1]),
    ],
    ids=["broadcast", "transposed", "flat", "reshaped", "ones", "broadcast within"],
)
def test_layouts_cost_no_kernel(reader: Document) -> None:
    assert nodes(in_turn(relu(), identity(reader))) == [(0, 1)]


def test_a_reshape_across_dimensions_is_no_sum_of_steps() -> None:
    # The writer's memory is of 3 pairs, and read as 2 triples, beside a tensor whose dimensions go the other way.
    writer = relu(desc=tensor(Strides=[3, 1]), OutputTensor=tensor(Strides=[1, 2]))
    reader = add(a=tensor(), b=tensor(Strides=[1, 2]))
    document = graph([writer, reader], [into("x", 0), into("y", 1, 1)], [out(1)], [between(0, 1)])
    assert nodes(document) == [(0,), (1,)]


def test_a_reduction_takes_what_is_before_and_after_it() -> None:
    desc = tensor(sizes=(4, 6))
    document = in_turn(tanh(InputTensor=desc), softmax(), node("ACTIVATION_RELU", InputTensor=desc))
    (part,) = parts(document)
    assert part.nodes == (0, 1, 2)
    assert part.dispatchable.program.maps["out"].axes == (1,)


def test_two_reductions_along_the_same_dimensions_are_one_kernel() -> None:
    assert nodes(in_turn(softmax(), softmax())) == [(0, 1)]


def test_reductions_along_different_dimensions_are_two_kernels() -> None:
    assert nodes(in_turn(softmax(), softmax(axes=(0,)))) == [(0,), (1,)]


def test_a_reduction_is_not_done_again_for_each_that_repeats_it() -> None:
    repeated = identity(tensor(sizes=(3, 4, 6), Strides=[0, 6, 1]))
    assert nodes(in_turn(softmax(), repeated)) == [(0,), (1,)]


def test_a_transposed_reduction_goes_along_the_readers_dimension() -> None:
    transposed = identity(tensor(sizes=(6, 4), Strides=[1, 6]))
    (part,) = parts(in_turn(softmax(), transposed))
    assert part.dispatchable.program.maps["out"].axes == (0,)


def test_a_costly_formula_is_not_repeated_often() -> None:
    few, many = (tensor(sizes=(times, 6), Strides=[0, 1]) for times in (8, 9))
    row = tensor(sizes=(6,))
    assert nodes(in_turn(tanh(InputTensor=row), identity(few))) == [(0, 1)]
    assert nodes(in_turn(tanh(InputTensor=row), identity(many))) == [(0,), (1,)]
    assert nodes(in_turn(relu(desc=row), identity(many))) == [(0, 1)]


def test_what_two_kernels_read_is_a_kernel() -> None:
    document = graph(
        [relu(), relu(), tanh(InputTensor=tensor())], [into(0, 0)], [out(1), out(2, 1)], [between(0, 1), between(0, 2)]
    )
    assert nodes(document) == [(0,), (1,), (2,)]


def test_what_is_read_as_another_type_is_in_memory() -> None:
    assert nodes(in_turn(relu(), node("ELEMENT_WISE_ABS", InputTensor=tensor("INT32")))) == [(0,), (1,)]


def test_an_output_of_the_graph_is_in_memory() -> None:
    document = graph([relu(), relu()], [into(0, 0)], [out(0), out(1, 1)], [between(0, 1)])
    assert nodes(document) == [(0,), (1,)]
    # What it is made of is not computed again by its reader.
    edges = [between(0, 1), between(0, 2), between(1, 2, 1)]
    document = graph([tanh(InputTensor=tensor()), relu(), add()], [into(0, 0)], [out(1), out(2, 1)], edges)
    assert nodes(document) == [(0,), (1,), (2,)]


def test_what_does_the_same_is_done_once() -> None:
    document = graph([relu(), relu(), add()], [into(0, 0), into(0, 1)], [out(2)], [between(0, 2), between(1, 2, 1)])
    fused = fuse(resolved(document), Structures())
    assert fused.aliases == {NodeOutput(1, "OutputTensor"): NodeOutput(0, "OutputTensor")}
    assert [part.nodes for part in fused.parts] == [(0, 2)]


def test_what_does_the_same_with_constants_of_the_same_few_bytes_is_done_once() -> None:
    document = graph(
        [constant(), constant(), add(), add()],
        [into(0, 2), into(0, 3)],
        [out(2), out(3, 1)],
        [between(0, 2, 1), between(1, 3, 1)],
    )
    for first, second, is_same in ((b"\1" * 24, b"\1" * 24, True), (b"\1" * 24, b"\2" * 24, False)):
        fused = fuse(resolved(document, data={0: first, 1: second}), Structures())
        assert (NodeOutput(3, "OutputTensor") in fused.aliases) is is_same


def test_0_and_minus_0_are_not_the_same() -> None:
    """Of -0 the one makes 0, and the other -0."""
    every = [
        node("ELEMENT_WISE_IDENTITY", InputTensor=tensor(), ScaleBias={"Scale": 1, "Bias": b}) for b in (0.0, -0.0)
    ]
    assert not fuse(resolved(graph(every, [into(0, 0), into(0, 1)], [out(0), out(1, 1)])), Structures()).aliases


@pytest.mark.parametrize("member", ["Alpha", "Beta"])
def test_other_attributes_are_not_the_same(member: str) -> None:
    every: list[Document] = [{"InputTensor": tensor(), member: value} for value in (0.25, 0.5)]
    sigmoids = [node("ACTIVATION_HARD_SIGMOID", **each) for each in every]
    document = graph([*sigmoids, add()], [into(0, 0), into(0, 1)], [out(2)], [between(0, 2), between(1, 2, 1)])
    (part,) = parts(document)
    assert part.nodes == (0, 1, 2)
    assert {0.25, 0.5} <= set(part.dispatchable.numbers.values())


def test_kernels_are_neither_too_deep_nor_too_wide() -> None:
    deep = nodes(chain(3 * MOST_DEPTH))
    assert len(deep) > 1
    assert sorted(index for each in deep for index in each) == list(range(3 * MOST_DEPTH))
    count = 2 * MOST_INPUTS
    wide = graph(
        [add() for _ in range(count)],
        [into(0, 0, 0), *[into(number + 1, number, 1) for number in range(count)]],
        [out(count - 1)],
        [between(number, number + 1) for number in range(count - 1)],
    )
    made = parts(wide)
    assert len(made) > 1
    assert all(len(part.reads) <= MOST_INPUTS for part in made)


def test_what_a_full_kernel_computes_is_read_there_again() -> None:
    count = 2 * MOST_INPUTS
    first = [into(0, 0, 0), into(0, 0, 1)]
    twice = [between(number, number + 1, place) for number in range(count - 1) for place in (0, 1)]
    found = nodes(graph([add() for _ in range(count)], first, [out(count - 1)], twice))
    assert sorted(index for each in found for index in each) == list(range(count))
    assert len(found) == 3


def test_graphs_alike_have_the_same_program() -> None:
    structures = Structures()

    def program(sizes: tuple[int, ...]) -> Program:
        document = in_turn(relu(desc=tensor(sizes=sizes)), tanh(InputTensor=tensor(sizes=sizes)))
        return fuse(resolved(document, structures=structures), structures).parts[0].dispatchable.program

    assert program((2, 3)) is program((5, 7))


def test_copies_are_of_what_they_copy() -> None:
    halves = tensor("FLOAT16", (4,))
    (part,) = parts(in_turn(relu(desc=halves), identity(halves), identity(halves), relu(desc=halves)))
    assert part.dispatchable.program.maps["out"].stored is DataType.FLOAT16
    # Out of memory they move bits, whatever these are.
    (part,) = parts(in_turn(identity(tensor("INT32")), identity(tensor("FLOAT32")), relu()))
    assert part.dispatchable.program.inputs == {"in0": DataType.FLOAT32}
    (part,) = parts(in_turn(identity(halves)))
    assert part.dispatchable.program.inputs == {"in0": DataType.UINT16}
    # What is computed as one type is not read as another.
    assert nodes(in_turn(relu(), identity(tensor()), node("ELEMENT_WISE_ABS", InputTensor=tensor("INT32")))) == [
        (0, 1),
        (2,),
    ]


# Once and for all


def test_what_depends_on_constants_alone_is_done_once() -> None:
    document = graph(
        [constant(), relu(), tanh(InputTensor=tensor()), add()],
        [into("x", 3, 1)],
        [out(3)],
        [between(0, 1), between(1, 2), between(2, 3)],
    )
    made = planned(document, {0: bytes(24)})
    assert [step.nodes for step in made.first] == [(1, 2)]
    assert [step.nodes for step in made.steps] == [(3,)]
    assert made.kept == (Constant(0), NodeOutput(2, "OutputTensor"))


def test_what_depends_on_an_input_far_before_is_no_constant() -> None:
    document = graph(
        [relu(), tanh(InputTensor=tensor()), add()],
        [into("x", 0), into("y", 2, 1)],
        [out(2)],
        [between(0, 1), between(1, 2)],
    )
    assert nodes(document) == [(0, 1, 2)]


def test_inputs_owned_by_dml_are_constants_too() -> None:
    document = graph([relu(desc=OWNED), add()], [into("w", 0), into("x", 1, 1)], [out(1)], [between(0, 1)])
    made = planned(document)
    assert [step.nodes for step in made.first] == [(0,)]
    assert list(made.inputs) == ["x"]
    assert list(made.owned) == ["w"]


def test_a_constant_output_is_copied() -> None:
    made = planned(graph([constant(), relu()], [], [out(1)], [between(0, 1)]), {0: bytes(24)})
    assert [step.nodes for step in made.first] == [(1,)]
    (copy,) = made.steps
    assert [place.room for place in (*copy.reads, *copy.writes)] == [Room.KEPT, Room.OUTPUT]


# One kernel


def alone(document: Document) -> InitializedGraph:
    return InitializedGraph(planned(document), ())


def test_a_graph_that_is_one_kernel_over_its_tensors_is_that_kernel() -> None:
    made = alone(chain(3))
    assert made.only is made.schedule.steps[0].dispatchable
    turned = graph([add(), add()], [into(0, 0), into(1, 0, 1), into(2, 1, 1)], [out(1)], [between(0, 1)])
    assert alone(turned).only is not None
    turned["InputEdges"] = [into(2, 0), into(1, 0, 1), into(0, 1, 1)]  # the kernel reads them in another order
    assert len(alone(turned).schedule.steps) == 1
    assert alone(turned).only is None
    assert alone(in_turn(softmax(), softmax(axes=(0,)))).only is None


@pytest.mark.parametrize(
    ("document", "reusable"),
    [
        (chain(3), ["0"]),
        (graph([add()], [into("x", 0), into("y", 0, 1)], [out(0)]), ["x", "y"]),
        (graph([add(b=tensor(Strides=[0, 1]))], [into("x", 0), into("y", 0, 1)], [out(0)]), ["x"]),
        (graph([add(b=tensor(sizes=(2, 3), Strides=[1, 2]))], [into("x", 0), into("x", 0, 1)], [out(0)]), []),
        (in_turn(relu(), identity(tensor(sizes=(3, 2), Strides=[1, 3]))), []),
        (in_turn(softmax(), relu(desc=tensor(sizes=(4, 6)))), []),
        (graph([relu(), relu()], [into(0, 0)], [out(0), out(1, 1)], [between(0, 1)]), []),
        (in_turn(relu(), node("CAST", InputTensor=X, OutputTensor=tensor("FLOAT16"))), []),
    ],
    ids=["chain", "two", "broadcast", "read twice", "transposed", "reduced", "two outputs", "narrower"],
)
def test_inputs_whose_memory_the_output_may_take(document: Document, reusable: list[str]) -> None:
    assert alone(document).reusable == reusable


# Memory


def test_outputs_are_written_where_they_go() -> None:
    made = planned(graph([relu(), relu()], [into(0, 0)], [out(0), out(1, 1)], [between(0, 1)]))
    assert made.scratch_bytes == 0
    assert [step.writes[0].room for step in made.steps] == [Room.OUTPUT, Room.OUTPUT]
    (step,) = planned(in_turn(relu(OutputTensor=tensor(Strides=[4, 1])))).steps
    assert not step.clears, "what lies between its elements stays"


def test_a_reader_beyond_an_output_reads_zeros() -> None:
    """FLOAT16 [3] is 6 bytes, and 8 with what rounds it up, which a reader reads, before or after others."""
    half = tensor("FLOAT16", (3,))
    beyond, within = identity(tensor("UINT8", (8,))), identity(tensor("UINT8", (6,)))
    for readers in ([beyond], [beyond, within], [within, beyond]):
        outputs = [out(number, number) for number in range(len(readers) + 1)]
        edges = [between(0, number + 1) for number in range(len(readers))]
        made = planned(graph([relu(desc=half), *readers], [into(0, 0)], outputs, edges))
        assert [place.size for place in made.steps[0].clears] == [8]
        assert made.scratch_bytes == ALIGNMENT


def test_what_is_copied_at_last_stays_until_then() -> None:
    every = [relu(desc=tensor("FLOAT16", (3,))), identity(tensor("UINT8", (8,)))]
    every += [softmax(axes=(number % 2,)) for number in range(3)]
    edges = [between(0, 1), between(2, 3), between(3, 4)]
    made = planned(graph(every, [into(0, 0), into(1, 2)], [out(0), out(1, 1), out(4, 2)], edges))
    assert made.scratch_bytes == 3 * ALIGNMENT  # beside two of the others


def test_memory_is_used_again() -> None:
    count = 20
    document = in_turn(*[softmax(axes=(number % 2,)) for number in range(count)])
    made = planned(document)
    assert len(made.steps) == count
    assert made.scratch_bytes == 2 * ALIGNMENT  # what a kernel reads, and what it writes
    assert not any(step.clears for step in made.steps), "elements are everywhere"


def at_random(rng: random.Random) -> dict[int, tuple[int, int, int]]:
    """Tensors that live at any time."""
    every = {}
    for number in range(40):
        start = rng.randrange(60)
        every[number] = (start, start + rng.choice([1, 1, 2, 3, 8]), ALIGNMENT * rng.randint(1, 50))
    return every


def of_a_model(rng: random.Random) -> dict[int, tuple[int, int, int]]:
    """Each written by a step and read by the next one, some by later ones; of few sizes."""
    lasting = [rng.choice([1, 1, 1, 1, 2, 4, rng.randint(1, 30)]) for _ in range(60)]
    return {
        step: (step, step + steps, ALIGNMENT * rng.choice([1, 4, 16, 16, 64, 64, 48, 96]))
        for step, steps in enumerate(lasting)
    }


@pytest.mark.parametrize("draw", [at_random, of_a_model])
def test_peak_memory_is_near_what_is_alive(draw: Callable[[random.Random], dict[int, tuple[int, int, int]]]) -> None:
    rng = random.Random(0)
    beyond = []
    for _ in range(60):
        intervals = draw(rng)
        offsets, total = place_intervals(intervals)
        alive = [sum(size for start, end, size in intervals.values() if start <= step <= end) for step in range(100)]
        assert most_alive(intervals) == max(alive)
        beyond.append(total / max(alive))
        for one, (start, end, size) in intervals.items():
            assert offsets[one] + size <= total
            for other, (begin, last, length) in intervals.items():
                if one < other and begin <= end and start <= last:
                    assert offsets[one] + size <= offsets[other] or offsets[other] + length <= offsets[one]
    assert max(beyond) <= 1.1
    assert sum(beyond) <= 1.01 * len(beyond)


def test_memory_of_many_tensors_is_planned_in_no_time() -> None:
    count = 4096  # with time or memory by the cube of them, this would not end
    intervals = {number: (number, 2 * count - number, ALIGNMENT * (1 + number % 50)) for number in range(count)}
    offsets, total = place_intervals(intervals)
    assert total == sum(size for _, _, size in intervals.values())
    assert len(set(offsets.values())) == count


# Coordinates


@pytest.mark.parametrize(
    ("sizes", "address", "written", "strides", "expected"),
    [
        ([2, 3], [3, 1], [2, 3], [3, 1], [[1, 0], [0, 1]]),
        ([6], [1], [2, 3], [3, 1], [[1, 0], [0, 1]]),  # split
        ([3, 2], [1, 3], [2, 3], [3, 1], [[0, 1], [1, 0]]),
        ([2, 2], [3, 1], [2, 3], [3, 1], [[1, 0], [0, 1]]),  # a part of it
        ([3], [2], [6], [1], [[2]]),
        ([4], [2], [2, 3], [3, 1], None),  # 0, 2, 4: the third is in the second row
        ([2, 3], [2, 1], [2, 3], [3, 1], None),  # 2 + 2 goes beyond a row
        ([3], [6], [2, 3], [3, 1], None),  # beyond the end
        ([2], [1], [2, 3], [4, 2], None),  # in a gap
        ([8], [1], [2, 3], [8, 1], None),  # as far as the next row, over a gap
        ([16], [1], [2, 3], [8, 1], None),
        ([2, 4], [8, 2], [2, 3], [8, 2], None),
    ],
)
def test_coordinates_of_an_address(
    sizes: list[int], address: list[int], written: list[int], strides: list[int], expected: list[list[int]] | None
) -> None:
    space = Space(sizes)
    assert space.coordinates(space.vector(address), written, strides) == expected


def test_splitting_keeps_what_was_known() -> None:
    space = Space([6, 5])
    whole = space.identity()
    assert space.coordinates(space.vector([1, 0]), [2, 3], [3, 1]) is not None
    assert space.sizes == [2, 3, 5]
    assert whole == [[3, 1, 0], [0, 0, 1]]


def test_coordinates_lead_to_the_same_elements_and_groups_are_whole() -> None:
    """Of tensors that lie, and are split into dimensions, at random."""
    rng = random.Random(7)

    def laid_out(count: int) -> tuple[list[int], list[int]]:
        sizes: list[int] = []
        while count > 1 and len(sizes) < 4:
            sizes.append(rng.choice([size for size in range(1, count + 1) if count % size == 0]))
            count //= sizes[-1]
        sizes.append(count)
        strides, step = [0] * len(sizes), 1
        for axis in rng.choice([[*range(len(sizes))][::-1], rng.sample(range(len(sizes)), len(sizes))]):
            strides[axis] = step
            step *= sizes[axis]
        return sizes, strides

    def at(vectors: list[list[int]], point: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sum(map(mul, vector, point)) for vector in vectors)

    grouped = 0
    for _ in range(2000):
        count = rng.choice([4, 6, 8, 12, 24])
        (sizes, address), (written, strides) = laid_out(count), laid_out(count)
        if rng.random() < 0.3:  # a part of it, or with steps between
            address = [step * rng.choice([0, 1, 1, 2]) for step in address]
        space = Space(sizes)
        whole = space.identity()
        found = space.coordinates(space.vector(address), written, strides)
        if found is None:
            continue
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        axes = sorted(rng.sample(range(len(written)), rng.randint(0, len(written))))
        along = space.groups(found, written, axes)
        for point in product(*map(range, space.sizes)):
            there = at(found, point)
            assert all(0 <= each < size for each, size in zip(there, written, strict=True))
            assert sum(map(mul, there, strides)) == sum(map(mul, at(whole, point), address))
            if along is not None:
                key = tuple(each for each, flag in zip(point, along, strict=True) if not flag)
                groups.setdefault(key, []).append(there)
        for group in groups.values():
            assert [tuple(each[axis] for axis in axes) for each in group] == [
                *product(*[range(written[axis]) for axis in axes])
            ]
            assert len({tuple(each for axis, each in enumerate(there) if axis not in axes) for there in group}) == 1
            grouped += 1
    assert grouped > 1000


@pytest.mark.parametrize(("source", "target"), [("FLOAT16", "FLOAT32"), ("FLOAT32", "FLOAT16")])
def test_casts_between_floats_are_no_copies(source: str, target: str) -> None:
    """Both are computed with as FLOAT32, so that the formula is its input."""
    cast = node("CAST", InputTensor=tensor(source), OutputTensor=tensor(target))
    alone = graph([cast], [into(0, 0)], [out(0)])
    (part,) = parts(alone)
    assert [desc.DataType for desc in part.dispatchable.inputs.values()] == [source]
    assert [desc.DataType for desc in part.dispatchable.outputs.values()] == [target]
    with_reader = graph([cast, relu(desc=tensor(target))], [into(0, 0)], [out(1)], [between(0, 1)])
    (part,) = parts(with_reader)
    assert [desc.DataType for desc in part.dispatchable.inputs.values()] == [source]
