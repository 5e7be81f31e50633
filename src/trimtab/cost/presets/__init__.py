"""Models and clusters by name; every figure carries its source in the file."""
