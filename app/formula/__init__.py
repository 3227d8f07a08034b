"""Formulas as symbolic values, written once and lowered by each device in its own way."""
