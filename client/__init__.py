"""Clients of the services, for programs: sessions with ps, calls to the chief, membership."""
