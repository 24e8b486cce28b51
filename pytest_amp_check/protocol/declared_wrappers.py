"""Effects that a configuration may declare for a project's wrapper: event names."""

from __future__ import annotations

SCALES, BACKWARD, UNSCALES, CLIPS = "scales", "backward", "unscales", "clips"
STEPS, UPDATES, CLEARS = "steps", "updates", "clears"
#: Event names, in the order of a training step.
DOES = (SCALES, BACKWARD, UNSCALES, CLIPS, STEPS, UPDATES, CLEARS)
