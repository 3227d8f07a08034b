"""Files that people have, run by the engine."""
