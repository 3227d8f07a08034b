"""The operators: one class each, from which everything else that is known of them follows."""
