"""What cluster.md says of fleets follows from what it says was measured."""

import fleet

CORES = 2
"""Of the machine that cluster.md is of."""


def test_the_arithmetic_is_that_of_the_measurements() -> None:
    text = fleet.TABLE.read_text()
    rows = fleet.measured(text)
    assert {(each.front, each.replicas, each.tensor) for each in rows} == {
        (front, replicas, tensor)
        for front in ("haproxy", "ray")
        for replicas in (1, 2, 4)
        for tensor in ("4K", "256K", "4M")
    }
    assert len(rows) == 18
    for each in rows:
        assert each.rate * (each.service + each.ahead) / 1e6 <= CORES, each
    for line in fleet.lines(text):
        assert line in text


def test_a_fleet_is_counted() -> None:
    rows = [fleet.Measured("haproxy", count, "4K", 1000.0, 100.0 + count, 60.0, 50.0 * count) for count in (1, 2, 4)]
    assert fleet.fleet("none", "4K", rows) == (60.0, 0.0, 60 / 0.6, 0.0, 36.864, 0, 2, 4.0)
    found = fleet.fleet("haproxy", "4K", rows)
    assert (found.service, found.ahead, found.cores, found.gigabits) == (102.0, 100.0, 202 / 0.6, 73.728)
    assert (found.fronts, found.machines) == (3, 3)
    assert [fleet.rounded(each) for each in (0, 4.4, 36.864, 103.3, 66_666)] == ["0", "4", "37", "100", "67,000"]
