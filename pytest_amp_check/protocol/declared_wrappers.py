"""What a project's configuration may say that a wrapper of its own does: the events, by the names they have there."""

from __future__ import annotations

SCALES, BACKWARD, UNSCALES, CLIPS = "scales", "backward", "unscales", "clips"
STEPS, UPDATES, CLEARS = "steps", "updates", "clears"
#: In the order in which a step of training goes through them.
DOES = (SCALES, BACKWARD, UNSCALES, CLIPS, STEPS, UPDATES, CLEARS)
