"""Convolutions of floats: filters moved over tensors, forward and backward."""
