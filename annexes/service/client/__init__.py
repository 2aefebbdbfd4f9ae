"""Calls to the gateway of a standalone cluster."""
