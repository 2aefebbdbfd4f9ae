"""A standalone cluster as data: its nodes, the jobs they are given, and what to do next. Pure."""
