"""Readers of a ps: what a session of theirs has beside steps, and the rows that they name."""

from .server.readers import reader_sessions, rows_of

__all__ = ["reader_sessions", "rows_of"]
