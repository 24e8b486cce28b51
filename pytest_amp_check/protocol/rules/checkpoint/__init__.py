"""AMP4xx: checkpoint, resume and schedule."""
