"""Operators that only training needs: optimizers."""
