"""The one client of the Kubernetes API: its requests, watches and logs, and what it refuses."""
