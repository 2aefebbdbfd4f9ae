"""Decisions of a job: members, barrier, takeover, closures, scalars. Pure."""
