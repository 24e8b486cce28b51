"""Runs of several processes: each records itself, and what they tell is laid side by side."""
