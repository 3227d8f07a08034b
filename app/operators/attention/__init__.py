"""Attention: values weighted by how well their keys go with queries."""
