"""Placement: which ps holds which shard, and how a variable is cut. Pure."""
