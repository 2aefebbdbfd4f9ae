"""The ``windlass`` command: daemons, a local cluster, the status."""
