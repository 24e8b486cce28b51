"""Rules AMP6xx: mixed precision across processes, threads, captures and compiled modules."""
