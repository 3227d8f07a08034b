"""Formulas as loops compiled with LLVM."""
