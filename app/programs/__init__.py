"""What devices run: programs, one step for each output of an operator."""
