"""Resolvers that ask a service; each of their client libraries is known to one module here."""
