"""Operators that make random numbers."""
