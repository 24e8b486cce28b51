"""Rules AMP9xx: deprecated entry points, unused suppressions and unanalyzed source."""
