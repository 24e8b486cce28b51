"""The parts of benchmarks/on_gpu.py: each yields rows of figures, and the claims say what they have to show."""
