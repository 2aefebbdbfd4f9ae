"""A standing cluster: daemons that run the jobs that are submitted to their gateway."""
