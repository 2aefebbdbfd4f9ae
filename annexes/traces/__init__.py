"""Traces: sampled steps as spans over worker, ps and chief, to a collector or into a file."""
