"""ELEMENT_WISE_* operators, by family."""
