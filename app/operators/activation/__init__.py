"""ACTIVATION_* operators, by family."""
