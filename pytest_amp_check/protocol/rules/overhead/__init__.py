"""Rules AMP7xx: casts, copies and matrix sizes that cost time or memory for nothing."""
