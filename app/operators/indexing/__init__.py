"""Operators that find elements by indices, give indices of elements, or go along an axis in order."""
