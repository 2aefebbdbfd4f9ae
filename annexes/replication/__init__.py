"""Shares that are followed and move: the chief's part, which decides who leads and follows."""
