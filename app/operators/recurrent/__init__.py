"""Recurrent networks: layers that go through sequences step by step."""
