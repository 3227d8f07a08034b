"""Memory that tensors lie in, and what requests hold of it."""
