"""Nodes put into an order in which they can run, and the cycles that have none."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """That one node reads another's output, by their indices."""

    writer: int
    reader: int


def put_in_order(nodes: int, links: Sequence[Link]) -> tuple[list[int], list[list[int]]]:
    """The nodes 0 to `nodes` - 1, each after all that it reads; and cycles, as positions in `links`.

    Of several orders it is the one that stays closest to that of the indices. Nodes in cycles, and those that wait for
    them, are not in it. Every cycle found shares no node with another; of cycles that touch only one is found.
    """
    readers: list[list[int]] = [[] for _ in range(nodes)]
    waits_for = [0] * nodes
    for writer, reader in links:
        readers[writer].append(reader)
        waits_for[reader] += 1
    ready = [node for node in range(nodes) if not waits_for[node]]  # ascending, and so a heap
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for reader in readers[node]:
            waits_for[reader] -= 1
            if not waits_for[reader]:
                heapq.heappush(ready, reader)
    return order, _cycles(waits_for, links) if len(order) < nodes else []


def _cycles(waits_for: Sequence[int], links: Sequence[Link]) -> list[list[int]]:
    """Circles among nodes that wait for one of themselves, as each of these does.

    From every node one way back is taken, to a node that it waits for: it ends in a cycle, or in a way taken before.
    """
    back = {link.reader: position for position, link in enumerate(links) if waits_for[link.writer]}
    walks: dict[int, int] = {}  # in which walk a node was met
    cycles = []
    for start in back:
        node, way = start, []
        while node not in walks:
            walks[node] = start
            way.append(back[node])
            node = links[back[node]].writer
        if walks[node] == start:
            entry = next(i for i, position in enumerate(way) if links[position].reader == node)
            cycles.append(list(reversed(way[entry:])))
    return cycles
