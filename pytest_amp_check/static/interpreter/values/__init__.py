"""Abstract values: the value domain of the interpreter."""
