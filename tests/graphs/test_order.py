"""The order of nodes, and cycles."""

from graphlib import CycleError, TopologicalSorter

import hypothesis.strategies as st
from hypothesis import given

from app.graphs.order import Link, put_in_order

links_of = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda ends: ends[0] != ends[1]).map(lambda e: Link(*e)),
    max_size=16,
)


@given(links_of)
def test_there_is_an_order_or_a_cycle(links: list[Link]) -> None:
    order, cycles = put_in_order(8, links)
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for writer, reader in links:
        sorter.add(reader, writer)
    try:
        sorter.prepare()
    except CycleError:
        assert cycles
        assert len(order) < 8
    else:
        assert not cycles
        assert sorted(order) == list(range(8))
    assert len(set(order)) == len(order)
    for writer, reader in links:
        if reader in order:
            assert order.index(writer) < order.index(reader)
    nodes = [links[position].writer for cycle in cycles for position in cycle]
    assert len(set(nodes)) == len(nodes), "no two cycles share a node"
    for cycle in cycles:
        for position, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert links[position].reader == links[following].writer


def test_cycles_apart_are_all_found() -> None:
    links = [Link(0, 1), Link(1, 0), Link(2, 3), Link(3, 4), Link(4, 2), Link(4, 5), Link(6, 0)]
    order, cycles = put_in_order(7, links)
    assert order == [6]
    assert sorted(sorted(cycle) for cycle in cycles) == [[0, 1], [2, 3, 4]]
