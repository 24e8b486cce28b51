"""Runs of several processes: each process makes a recording, and the reports are merged."""
