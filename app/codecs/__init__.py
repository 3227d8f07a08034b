"""Documents on the wire, of any protocol: bytes to dicts and lists and back, tensor data without a detour."""
