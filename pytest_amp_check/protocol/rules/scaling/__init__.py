"""Rules AMP2xx: gradient scaling."""
