"""Rules AMP3xx: gradient accumulation."""
