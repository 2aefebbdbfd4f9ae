"""The container of a task, whoever starts it: ports, folders, and the image's user."""

PORT = 2222
HEALTH_PORT = 2223
METRICS_PORT = 2224
CHECKPOINTS = "/checkpoints"
TLS_FOLDER = "/run/ropewalk/tls"
TOKEN_FOLDER = "/run/ropewalk/token"  # noqa: S105 - a folder
CODE_FOLDER = "/run/ropewalk/code"
PARTS_FOLDER = "/run/ropewalk/packed"
IMAGE_USER = 10001
"""Number of the user, and of its group; deploy/docker/Dockerfile makes them."""
