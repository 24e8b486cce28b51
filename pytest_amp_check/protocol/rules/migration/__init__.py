"""Rules on what has moved on: deprecated entry points, suppressions without a finding, sources that cannot be read."""
