"""What clients do in one episode."""

from collections.abc import Callable
from itertools import product
from typing import TypeAlias

from tests.fuzz.clients import Client
from tests.fuzz.connection import Connection
from tests.fuzz.exchanges import Aim, Exchange
from tests.fuzz.forms import BINARY_DATA, FORMS, NATIVE, SPREAD, Form
from tests.fuzz.payload import OPERATORS
from tests.fuzz.sizes import NEAR, WAITING

SMALL_BUFFERS = (1 << 14, 1 << 16)
"""Bytes that the kernel takes for a client that reads late."""

LARGE = [form for form in FORMS if form.most >= max(WAITING)]
"""The forms of large requests."""

REPEATED = [Aim(measure, threshold) for threshold, measure in product(WAITING, ("body", "answer"))]
"""Around each of them some client sends the same header again and again."""


def serial(client: Client) -> None:
    """One request after another."""
    with client.connected() as connection:
        for _ in range(client.rng.randint(1, 10)):
            exchange = client.some()
            connection.send(exchange.head)
            if exchange.framing == "expect":
                connection.await_some()
            connection.send(exchange.body)
            client.check(connection, exchange)


def pipelined(client: Client) -> None:
    """Several requests in one piece, the last of which may end the connection."""
    rng = client.rng
    with client.connected() as connection:
        for _ in range(rng.randint(1, 3)):
            _ask(client, connection, [client.some() for _ in range(rng.randint(2, 8))])
        if rng.random() < 0.5:
            exchanges = [client.some() for _ in range(rng.randint(0, 3))]
            _ask(client, connection, [*exchanges, client.exchanges.ending(rng, client.owner())])
            connection.expect_end()


def _ask(client: Client, connection: Connection, exchanges: list[Exchange]) -> None:
    connection.send(b"".join(exchange.message for exchange in exchanges))
    for exchange in exchanges:
        client.check(connection, exchange)


def slow(client: Client) -> None:
    """Requests in pieces, cut anywhere."""
    rng = client.rng
    with client.connected() as connection:
        for _ in range(rng.randint(1, 5)):
            exchange = client.some()
            message = exchange.message
            cuts = [rng.randrange(len(message)) for _ in range(rng.choice([1, 1, 2, 5]))]
            if rng.random() < 0.5:
                cuts.append(rng.randrange(len(exchange.head)))
            start = 0
            for cut in [*sorted(cuts), len(message)]:
                connection.send(message[start:cut])
                connection.idle(rng.choice([0.0005, 0.005, 0.03]))
                start = cut
            client.check(connection, exchange)


def late(client: Client) -> None:
    """Several large answers wait until the client reads, some in small pieces."""
    rng = client.rng
    with client.connected(rng.choice(SMALL_BUFFERS)) as connection:
        for _ in range(rng.randint(1, 3)):
            forms = rng.choices([*LARGE, SPREAD, SPREAD], k=rng.randint(1, 4))
            exchanges = [client.exchanges.aimed(rng, client.owner(), form, WAITING) for form in forms]
            connection.send(b"".join(exchange.message for exchange in exchanges))
            connection.idle(rng.uniform(0, 0.2))
            for exchange in exchanges:
                client.check(connection, exchange, at_once=rng.choice([5000, 50_000, 500_000]))


def again(client: Client) -> None:
    """The same header again and again, with other data each time; then answers that wait while others are served."""
    rng = client.rng
    turn, is_other = divmod(client.episode, 2)
    form = rng.choice([*NATIVE, BINARY_DATA]) if is_other else NATIVE[0]
    aim = REPEATED[(turn * client.peers + client.number) % len(REPEATED)]
    with client.connected(SMALL_BUFFERS[1]) as connection:
        for delta in rng.sample([-rng.randint(1, NEAR), 0, rng.randint(1, NEAR)], 3):
            repeated = _Repeated(client, connection, form, Aim(aim.measure, aim.threshold, delta))
            for _ in range(4):
                client.check(connection, repeated.ask())
            waiting = []
            for _ in range(2):
                waiting.append(repeated.ask())
                connection.idle(rng.uniform(0.01, 0.04))
            connection.idle(rng.uniform(0, 0.06))
            for exchange in waiting:
                client.check(connection, exchange, f"again, {aim}")


class _Repeated:
    """Requests with one header."""

    def __init__(self, client: Client, connection: Connection, form: Form, aim: Aim) -> None:
        self._client = client
        self._connection = connection
        self._form = form
        self._aim = aim
        self._operator = client.rng.choice(list(OPERATORS))

    def ask(self) -> Exchange:
        """Send the next one."""
        exchanges = self._client.exchanges
        size = exchanges.size(self._form, self._aim)
        exchange = exchanges.dispatch(
            self._client.rng, self._client.owner(), self._form, size, self._aim, operator=self._operator
        )
        self._connection.send(exchange.message)
        return exchange


def aborting(client: Client) -> None:
    """Leaves in the middle of a request, or of an answer."""
    rng = client.rng
    with client.connected(rng.choice([None, *SMALL_BUFFERS])) as connection:
        _ask(client, connection, [client.some() for _ in range(rng.randint(0, 2))])
        message = b"".join(client.some().message for _ in range(rng.randint(1, 3)))
        is_whole = rng.random() < 0.5
        connection.send(message if is_whole else message[: rng.randrange(1, len(message))])
        connection.idle(rng.choice([0, 0.001, 0.02]))
        if is_whole and rng.random() < 0.5:
            connection.receive_part(rng.choice([1, 100]))
        connection.close(reset=rng.random() < 0.5)
        client.tally.right(f"aborted, {'whole' if is_whole else 'part'}")


Behaviour: TypeAlias = Callable[[Client], None]

BEHAVIOURS: dict[str, tuple[Behaviour, int]] = {
    "serial": (serial, 2),
    "pipelined": (pipelined, 2),
    "slow": (slow, 2),
    "late": (late, 2),
    "again": (again, 4),
    "aborting": (aborting, 2),
}
"""By name, and how many clients do it at a time."""
