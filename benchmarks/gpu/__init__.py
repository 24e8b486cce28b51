"""The parts of benchmarks/on_gpu.py. Each part yields rows of figures, and the claims define the required rows."""
