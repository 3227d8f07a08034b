"""Operators that make one element of all elements along some dimensions."""
