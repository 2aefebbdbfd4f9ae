"""``ropewalk k8s``: a job as objects of Kubernetes, and how it is followed there."""
