"""Devices: what computes programs, and the choice among them."""
