"""Rules AMP8xx: loss scale, non-finite values and exceptions of a recorded run."""
