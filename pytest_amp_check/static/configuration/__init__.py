"""Configuration files of trainings: YAML, JSON and TOML files that set the precision of a framework."""
