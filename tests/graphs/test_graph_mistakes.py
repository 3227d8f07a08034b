"""Graphs with several mistakes, each anywhere: all are told at once, each with the place where it is."""

import random
from collections import Counter
from collections.abc import Callable

from tests.graphs.documents import Document, between, graph, into, out, refusals, relu, tensor

WELL = 4
"""Pairs of nodes without a mistake, whose edges go by name as all others do."""


class Pairs:
    """A graph of pairs of operators that have nothing to do with one another, each with at most one mistake."""

    def __init__(self, count: int) -> None:
        names = [(f"a{each}", f"b{each}") for each in range(count)]
        self.document = graph(
            [relu(name) for pair in names for name in pair],
            [into(f"x{each}", a, "InputTensor") for each, (a, _) in enumerate(names)],
            [out(b, f"y{each}", "OutputTensor") for each, (_, b) in enumerate(names)],
            [between(a, b, "InputTensor", "OutputTensor") for a, b in names],
        )
        self.expected: list[str] = []
        """Pointers of what is wrong."""
        self.missing_inputs: list[str] = []
        self.missing_outputs: list[str] = []
        """Of nodes that lack an edge, which is only told where no edge that leads nowhere may be meant for them."""
        self.is_reader_unclear = self.is_writer_unclear = False

    def node(self, pair: int, place: int) -> Document:
        found: Document = self.document["Nodes"][2 * pair + place]
        return found

    def edge(self, pair: int) -> Document:
        found: Document = self.document["IntermediateEdges"][pair]
        return found

    def say(self, pair: int, field: str = "") -> None:
        """That something is wrong with the edge inside of a pair."""
        self.expected.append(f"/IntermediateEdges/{pair}{field and '/' + field}")

    @property
    def pointers(self) -> Counter[str]:
        """All that is to be told."""
        found = Counter(self.expected)
        found.update(() if self.is_reader_unclear else self.missing_inputs)
        found.update(() if self.is_writer_unclear else self.missing_outputs)
        return found


def unknown_reader(pairs: Pairs, pair: int) -> None:
    pairs.edge(pair)["ToNode"] = "nobody"
    pairs.say(pair, "ToNode")
    pairs.is_reader_unclear = True


def unknown_writer(pairs: Pairs, pair: int) -> None:
    pairs.edge(pair)["FromNode"] = "nobody"
    pairs.say(pair, "FromNode")
    pairs.is_writer_unclear = True


def unknown_input(pairs: Pairs, pair: int) -> None:
    pairs.edge(pair)["ToNodeInput"] = "ATensor"
    pairs.say(pair, "ToNodeInput")


def output_beyond(pairs: Pairs, pair: int) -> None:
    del pairs.edge(pair)["FromNodeOutput"]
    pairs.edge(pair)["FromNodeOutputIndex"] = 1
    pairs.say(pair, "FromNodeOutputIndex")


def index_and_name(pairs: Pairs, pair: int) -> None:
    pairs.edge(pair)["ToNodeIndex"] = 2 * pair + 1
    pairs.say(pair, "ToNode")
    pairs.is_reader_unclear = True


def unequal_bytes(pairs: Pairs, pair: int) -> None:
    pairs.node(pair, 1)["Desc"]["InputTensor"] = tensor(sizes=(7,))
    pairs.say(pair)


def owned(pairs: Pairs, pair: int) -> None:
    pairs.node(pair, 1)["Desc"]["InputTensor"] = tensor(Flags=["OWNED_BY_DML"])
    pairs.say(pair)


def doubled(pairs: Pairs, pair: int) -> None:
    pairs.document["InputEdges"].append(into(f"x{pair}", f"b{pair}", "InputTensor"))
    pairs.say(pair)


def to_itself(pairs: Pairs, pair: int) -> None:
    pairs.edge(pair)["FromNode"] = f"b{pair}"
    pairs.say(pair)
    pairs.missing_outputs.append(f"/Nodes/{2 * pair}")


def cycle(pairs: Pairs, pair: int) -> None:
    """The first of the pair adds what the second one makes."""
    pairs.document["Nodes"][2 * pair]["Desc"] = {
        "Type": "ELEMENT_WISE_ADD",
        "ATensor": tensor(),
        "BTensor": tensor(),
    }
    pairs.document["InputEdges"][pair]["ToNodeInput"] = "ATensor"
    pairs.document["IntermediateEdges"].append(between(f"b{pair}", f"a{pair}", "BTensor", "OutputTensor"))
    pairs.expected.append(f"/IntermediateEdges/{len(pairs.document['IntermediateEdges']) - 1}")


def invalid(pairs: Pairs, pair: int) -> None:
    pairs.node(pair, 0)["Desc"]["OutputTensor"] = tensor(sizes=(3, 2))
    pairs.expected.append(f"/Nodes/{2 * pair}/Desc/OutputTensor/Sizes")


def output_of_another(pairs: Pairs, pair: int) -> None:
    pairs.document["OutputEdges"][pair]["GraphOutput"] = "y0"
    pairs.expected.append(f"/OutputEdges/{pair}/GraphOutput")


def unconnected(pairs: Pairs, pair: int) -> None:
    """One more node, that nothing leads to or from."""
    pairs.document["Nodes"].append(relu())
    at = f"/Nodes/{len(pairs.document['Nodes']) - 1}"
    pairs.missing_inputs.append(at)
    pairs.missing_outputs.append(at)


def name_of_another(pairs: Pairs, pair: int) -> None:
    """One more node, well connected by index, that has the name of a node that edges call."""
    nodes = pairs.document["Nodes"]
    nodes.append(relu(f"b{pair}"))
    pairs.document["InputEdges"].append(into(f"x{pair}", len(nodes) - 1, "InputTensor"))
    pairs.document["OutputEdges"].append(out(len(nodes) - 1, f"twin{len(nodes)}", "OutputTensor"))
    pairs.say(pair, "ToNode")
    pairs.expected.append(f"/OutputEdges/{pair}/FromNode")
    pairs.is_reader_unclear = pairs.is_writer_unclear = True


MISTAKES: tuple[Callable[[Pairs, int], None], ...] = (
    unknown_reader,
    unknown_writer,
    unknown_input,
    output_beyond,
    index_and_name,
    unequal_bytes,
    owned,
    doubled,
    to_itself,
    cycle,
    invalid,
    output_of_another,
    unconnected,
    name_of_another,
)


def test_every_mistake_is_told_where_it_is_whatever_else_is_wrong() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        chosen = rng.choices(MISTAKES, k=rng.randint(1, 8))
        pairs = Pairs(WELL + len(chosen))
        places = rng.sample(range(1, WELL + len(chosen)), len(chosen))
        for mistake, pair in zip(chosen, places, strict=True):
            mistake(pairs, pair)
        found = Counter(each.pointer for each in refusals(pairs.document))
        assert found == pairs.pointers, (seed, [each.__name__ for each in chosen], places)


def test_without_a_mistake_nothing_is_told() -> None:
    assert refusals(Pairs(WELL).document) == []
