"""Monitors: callbacks of training frameworks that record a training. Each module needs its framework."""
