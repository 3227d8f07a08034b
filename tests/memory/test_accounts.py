"""Accounts: no more than their limit, and all of it back once nobody works with it."""

from collections.abc import Callable
from functools import partial

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


def test_a_buffer_that_is_not_there_is_not_held() -> None:
    account = MemoryAccount(8 << 20)
    with account.open() as share:
        assert share.used_buffer(1 << 20) is None
        assert share.held == account.used == 0


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
