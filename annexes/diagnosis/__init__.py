"""Asking tasks what they do: stacks of all threads, a report in one file, and what differs."""
