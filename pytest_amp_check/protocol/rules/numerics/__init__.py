"""Rules on what float16 and bfloat16 can hold: weights, gradients, losses and constants."""
