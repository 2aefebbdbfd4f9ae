"""Rows by section, in the order in which the table has them. A section's rows are in its module."""

from . import (
    arrays,
    environment,
    failures,
    jax,
    keras,
    launchers,
    nccl,
    pytorch,
    speed,
    strategies,
)

__all__ = [  # noqa: RUF022 - the table's order
    "environment",
    "arrays",
    "nccl",
    "strategies",
    "pytorch",
    "jax",
    "keras",
    "launchers",
    "failures",
    "speed",
]
