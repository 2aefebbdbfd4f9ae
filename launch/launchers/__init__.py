"""One interface for all launchers, and those that need nothing but a program on this machine."""
