"""Graphs: many operators, and what leads from one to the other."""
