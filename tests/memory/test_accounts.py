"""Accounts: no more than their limit, and all of it back once nobody works with it."""

import time
from collections.abc import Callable
from functools import partial
from mmap import mmap

import pytest

from app.memory.accounts import LimitExceeded, MemoryAccount, MemoryExhausted, RequestOver


def test_all_of_the_limit_and_no_byte_more() -> None:
    account = MemoryAccount(100)
    with account.open() as one, account.open() as other:
        one.take(60)
        other.take(40)
        assert (account.used, one.free, other.held) == (100, 0, 40)
        with pytest.raises(MemoryExhausted):
            other.take(1)
        assert (account.used, other.held) == (100, 40)  # no more than before
        one.give(60)
        assert (account.used, one.held, other.free) == (40, 0, 60)
    assert account.used == 0


def test_what_would_not_fit_alone_is_a_limit_exceeded() -> None:
    account = MemoryAccount(100)
    with account.open() as share, account.open() as other:
        other.take(100)
        share.check(100)
        with pytest.raises(MemoryExhausted):  # it would fit later
            share.take(100)
        other.give(1)
        share.take(1)
        for ask in (share.check, share.take):
            with pytest.raises(LimitExceeded, match="100"):
                ask(100)
        assert share.held == 1


def test_what_passes_is_given_back() -> None:
    account = MemoryAccount(100)
    with account.open() as share:
        with share.passing(70):
            assert share.held == account.used == 70
        assert share.held == account.used == 0
        assert len(share.buffer(50)) == 50
        assert account.used == 50


def test_what_passes_is_given_back_whatever_happens() -> None:
    account = MemoryAccount(100)
    with account.open() as share:
        with pytest.raises(ZeroDivisionError), share.passing(70):
            raise ZeroDivisionError
        assert share.held == account.used == 0


def test_what_is_held_may_become_more_and_less() -> None:
    account = MemoryAccount(100)
    with account.open() as share:
        for amount in (10, 100, 100, 0, 20):  # and no more meanwhile
            share.hold(amount)
            assert share.held == account.used == amount
        with pytest.raises(LimitExceeded):
            share.hold(101)
        assert share.held == account.used == 20


def test_what_is_kept_for_later_makes_room() -> None:
    """At once: it is within the limit, too."""
    pinned: list[int] = []
    gone: list[int] = []

    class Noted:
        def pin(self, memory: mmap) -> None:
            pinned.append(len(memory))

        def unpin(self, memory: mmap) -> None:
            gone.append(len(memory))

    account = MemoryAccount(8 << 20, 8 << 20, Noted())
    with account.open() as share:
        for size in (1 << 20, 2 << 20):
            share.buffer(size)
        share.give(share.held)
        assert pinned == [1 << 20, 2 << 20]
        assert (account.pool.idle_bytes, gone) == (3 << 20, [])
        share.take(6 << 20)
        assert gone == [1 << 20]
        share.give(6 << 20)
        assert account.pool.idle_bytes == 2 << 20
        share.take(8 << 20)
        assert gone == [1 << 20, 2 << 20]


def test_what_is_there_already_may_be_more_than_the_limit() -> None:
    """Nothing is promised until it is less, nothing kept for later, and all of it can be given back."""
    account = MemoryAccount(8 << 20, 8 << 20)
    with account.open() as share:
        share.buffer(1 << 20)
        account.move(8 << 20, is_there=True)
        assert (account.used, account.free, share.free) == (9 << 20, 0, 0)
        with pytest.raises(MemoryExhausted, match="1 bytes wanted, 0 of"):
            share.take(1)
        account.move(1, is_there=True)
        share.give(1 << 20)
        assert account.pool.idle_bytes == 0
    account.move(-(8 << 20) - 1, is_there=True)
    assert (account.used, account.free) == (0, 8 << 20)
    with account.open() as share:
        share.take(8 << 20)


def test_only_workers_let_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop has nobody to wait for."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with MemoryAccount(100).open() as share:
        share.ensure_open()
        assert slept == []
        with share.lent():
            share.ensure_open()
            assert len(slept) == 1
        share.ensure_open()
        assert len(slept) == 1


def test_a_buffer_that_is_not_there_is_not_held() -> None:
    account = MemoryAccount(8 << 20)
    with account.open() as share:
        assert share.used_buffer(1 << 20) is None
        assert share.held == account.used == 0


def test_a_buffer_of_used_memory_is_held() -> None:
    account = MemoryAccount(8 << 20, 8 << 20)
    with account.open() as share:
        share.buffer(1 << 20)  # which nobody has, so that it is kept for later at once
        share.give(1 << 20)
        found = share.used_buffer(1 << 20)
        assert found is not None
        assert len(found) == share.held == account.used == 1 << 20


def test_nothing_is_taken_when_the_request_is_over() -> None:
    account = MemoryAccount(100)
    share = account.open()
    share.ensure_open()
    share.take(10)
    share.close()
    assert account.used == 0
    asks: list[Callable[[], object]] = [
        partial(share.take, 1),
        partial(share.check, 1),
        share.ensure_open,
        share.lent().__enter__,
    ]
    for ask in asks:
        with pytest.raises(RequestOver):
            ask()
    assert account.used == 0


@pytest.mark.parametrize("is_over_first", [True, False])
def test_what_a_worker_has_is_given_back_when_both_are_done(is_over_first: bool) -> None:
    account = MemoryAccount(100)
    share = account.open()
    with share.lent():
        share.take(10)
        if is_over_first:
            share.close()
            assert account.used == 10  # the worker writes to it still
            with pytest.raises(RequestOver):
                share.ensure_open()
    assert account.used == (0 if is_over_first else 10)
    share.close()
    assert account.used == 0
