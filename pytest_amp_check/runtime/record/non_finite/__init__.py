"""The watch for non-finite values: checks of a step's tensors, records for a replay, and reports of causes."""
