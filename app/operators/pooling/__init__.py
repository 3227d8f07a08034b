"""Operators that make one element of a window or a region of others, and their gradients."""
