"""Launchers behind one interface, and those that need nothing but a program on this machine."""
