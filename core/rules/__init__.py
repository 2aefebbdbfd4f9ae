"""Variables and the ways in which they change, as data."""
