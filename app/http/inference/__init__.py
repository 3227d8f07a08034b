"""The Open Inference Protocol (KServe V2) over HTTP, with Triton's extensions: a second door to the same service."""
