"""A worker without a program of its own: it runs the closures that a coordinator schedules."""
