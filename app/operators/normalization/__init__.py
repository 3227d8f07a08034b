"""Operators that set elements in relation to means, variances and norms of groups, and their gradients."""
