"""Certificates of a job: an authority, and a certificate for each role."""
