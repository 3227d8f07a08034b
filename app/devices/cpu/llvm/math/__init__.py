"""Functions of floats for loops, made of what processors have."""
