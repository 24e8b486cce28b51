"""Rules AMP5xx: range and precision of float16 and bfloat16, for weights, gradients, losses and constants."""
