"""Findings: which task of a job is slow and at what, and which ps has most of the work."""
