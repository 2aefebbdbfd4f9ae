"""The display of commands: terminal, tables, numbers and progress."""
