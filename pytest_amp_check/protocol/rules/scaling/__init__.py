"""AMP2xx: the gradient scaling protocol."""
