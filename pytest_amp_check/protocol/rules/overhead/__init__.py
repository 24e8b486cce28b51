"""AMP7xx: what mixed precision is made to do more often than it needs to."""
