"""Choice for an optimizer that has no rule: deltas, or an error."""

import logging
from collections.abc import Mapping
from typing import Literal, get_args

from ..core.arrays.dtypes import Array, is_float
from ..core.errors import ConfigurationError
from ..core.rules.update_rules import OnServer, OnWorker, Place

log = logging.getLogger(__name__)

Deltas = Literal["allow", "forbid", "always"]
"""Whether an optimizer may run on the worker: if it has no rule; never; even if it has one."""


def choose_place(place: Place, deltas: Deltas, name: str) -> Place:
    """Choose where an optimizer runs.

    Args:
        place: Place of the optimizer according to the table of rules.
        deltas: Whether it may run on the worker.
        name: Name of the optimizer, for messages.

    Raises:
        ConfigurationError: It has no rule and deltas are forbidden.
        ValueError: ``deltas`` is none of the allowed values.
    """
    if deltas not in get_args(Deltas):
        raise ValueError(f"deltas={deltas!r}; it is one of {', '.join(get_args(Deltas))}")
    if deltas == "always" and isinstance(place, OnServer):
        place = OnWorker('runs there by wish (deltas="always")')
    if isinstance(place, OnServer):
        return place
    if deltas == "forbid":
        raise ConfigurationError(
            f"{name} {place.reason}, so it cannot run on the servers, and deltas are forbidden; "
            'take one that docs/bridges.md lists, or deltas="allow": then each worker has an '
            "optimizer of its own and pushes what it changed",
            optimizer=name,
        )
    log.info("%s runs on this worker: it %s. Its changes are pushed as deltas", name, place.reason)
    return place


def tell_of_half_precision(arrays: Mapping[str, Array], kind: str, *, as_deltas: bool) -> None:
    """Say how training half-precision arrays with other processes differs from training alone.

    Args:
        arrays: Arrays that an optimizer updates, by name.
        kind: Kind of the optimizer, for messages.
        as_deltas: Whether it runs on the worker and its changes travel; else it runs on the
            servers.
    """
    half = [n for n, a in arrays.items() if is_float(a.dtype) and a.dtype.itemsize < 4]
    if not half:
        return
    dtype = arrays[half[0]].dtype.name
    if as_deltas:
        log.warning(
            "%r is %s: what %s changes in a step travels as a difference that is rounded to %s, so "
            "the curve is not quite the one that it has alone; keep parameters in float32, and "
            "compute in %s where the model does (autocast, a compute dtype)",
            *(half[0], dtype, kind, dtype, dtype),
        )
    else:
        log.warning(
            "%r is %s: on the servers %s computes in float32 and keeps its moments in it, so the "
            'curve is not quite the one that it has alone; deltas="always" keeps it on the '
            "worker, where it computes in %s as alone, and what it changes is rounded to that",
            *(half[0], dtype, kind, dtype),
        )
