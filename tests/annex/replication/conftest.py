"""Ps and hosts as for contracts of the kernel: followers are tried over the same connections."""

from helpers.served import kind, local, ps, serve, start

__all__ = ["kind", "local", "ps", "serve", "start"]
