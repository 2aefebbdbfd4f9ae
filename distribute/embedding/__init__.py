"""Embedding tables of several features, looked up and trained together. ``rw.embedding``."""
