"""Operators that move elements to other places, convert them, or fill tensors."""
