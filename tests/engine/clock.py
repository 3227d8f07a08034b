"""Time that goes on when a test says so."""


class Clock:
    """In seconds."""

    now = 1000.0
