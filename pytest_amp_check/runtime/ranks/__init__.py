"""Runs of several processes: each process records itself, and the reports are merged."""
