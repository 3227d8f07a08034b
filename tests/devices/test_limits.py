"""The account of memory that requests hold together."""

import threading

import pytest

from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryExhausted


def test_shares_add_up_to_the_limit() -> None:
    account = MemoryAccount(100)
    with account.open() as a, account.open() as b:
        a.take(60)
        b.take(40)
        assert account.used == 100
        a.give(10)
        assert (account.used, a.held, b.held) == (90, 50, 40)
        b.take(10)
    assert account.used == 0


def test_more_than_is_left_is_refused_and_changes_nothing() -> None:
    account = MemoryAccount(100)
    with account.open() as a, account.open() as b:
        a.take(60)
        with pytest.raises(MemoryExhausted, match="41 bytes wanted, 40 of max_memory_bytes free"):
            b.take(41)
        assert (account.used, a.held, b.held) == (60, 60, 0)
        b.take(40)


def test_a_share_is_given_back_when_something_fails() -> None:
    account = MemoryAccount(100)

    def fail() -> None:
        with account.open() as share:
            share.take(70)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert account.used == 0


def test_giving_back_works_at_the_limit() -> None:
    account = MemoryAccount(10)
    with account.open() as share:
        share.take(10)
        share.give(10)
        share.take(0)
        share.take(10)
    assert account.used == 0


def test_threads_share_an_account() -> None:
    account = MemoryAccount(1000)
    refused = threading.Event()
    most = 0

    def request() -> None:
        nonlocal most
        for _ in range(300):
            try:
                with account.open() as share:
                    share.take(150)
                    share.take(150)
                    most = max(most, account.used)
                    share.give(100)
            except MemoryExhausted:
                refused.set()

    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert account.used == 0
    assert 300 <= most <= 1000


@pytest.mark.parametrize(("given", "told"), [(7, "7"), (None, "more")])
def test_an_exceeded_limit_is_named(given: int | None, told: str) -> None:
    exceeded = LimitExceeded("max_tensor_bytes", "Buffer of X in bytes", given, 5, ("operator", "X"))
    assert str(exceeded) == f"Buffer of X in bytes: {told}, where max_tensor_bytes allows 5."
    assert (exceeded.limit, exceeded.given, exceeded.allowed, exceeded.path) == (
        "max_tensor_bytes",
        given,
        5,
        ("operator", "X"),
    )
