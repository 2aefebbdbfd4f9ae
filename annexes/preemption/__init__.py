"""Notices that this machine is about to be taken away, and checkpoints that programs save then."""
