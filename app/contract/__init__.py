"""DirectML's contract as plain values: names, tensor descriptors, support tables. No I/O, no arrays."""
