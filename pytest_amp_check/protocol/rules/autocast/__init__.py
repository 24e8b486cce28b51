"""Rules on autocast regions: where they begin and end, what may run inside, and what their arguments mean."""
