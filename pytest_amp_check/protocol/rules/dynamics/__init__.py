"""AMP8xx: how the loss scale moves over a run."""
