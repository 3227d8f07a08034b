"""Operators that sample a tensor at other places than its elements', and their gradients."""
