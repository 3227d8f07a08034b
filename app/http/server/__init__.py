"""Connections, and the processes that serve them."""
