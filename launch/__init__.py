"""The ``ropewalk`` command: daemons, a local cluster, the status."""
