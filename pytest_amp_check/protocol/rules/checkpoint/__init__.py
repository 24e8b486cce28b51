"""Rules AMP4xx: checkpoints, resumed runs and learning-rate schedules."""
