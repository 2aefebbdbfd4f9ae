"""Moments of all ps: cuts, of which checkpoints and snapshots have the values."""
