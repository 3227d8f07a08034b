"""Formulas as NumPy's calls."""
