"""Devices, how formulas become kernels on them, and the workers that run dispatches. Knows no HTTP."""
