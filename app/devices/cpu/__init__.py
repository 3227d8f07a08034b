"""The CPU: loops compiled with LLVM, or NumPy's calls."""
