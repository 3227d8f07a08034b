"""Quantized tensors: integers multiplied and convolved, and numbers made quantized and restored."""
