"""The service's own protocol."""
