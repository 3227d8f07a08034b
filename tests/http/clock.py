"""Timers whose time passes when a test says so."""

from collections.abc import Callable
from functools import partial


class Timer:
    """What `call_later` gives."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class Timers:
    """What is asked of an event loop for something to be done later. `now` is in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._timers: list[Timer] = []

    def call_later(self, seconds: float, callback: Callable[..., None], *given: object) -> Timer:
        self._timers.append(Timer(self.now + seconds, partial(callback, *given)))
        return self._timers[-1]

    @property
    def timers(self) -> list[Timer]:
        """Those that run."""
        return sorted((each for each in self._timers if not each.is_over), key=lambda each: each.when)

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and self.timers[0].when <= end:
            timer = self.timers[0]
            self.now, timer.is_over = timer.when, True
            timer.callback()
        self.now = end
