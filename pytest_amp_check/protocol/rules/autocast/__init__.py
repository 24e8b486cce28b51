"""Rules AMP1xx: autocast regions, their extent, their contents and their arguments."""
