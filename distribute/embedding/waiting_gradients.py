"""Gradients of lookups that wait for the step that applies them, each table by one update."""

from collections.abc import Mapping
from typing import Any

from ...core.arrays.any_framework import to_host
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from .tables import Lookup, apply_rows, sum_rows

MAX_WAITING = 1024
"""Largest number of backward passes whose gradients may wait. Unit: lookups."""


class WaitingGradients:
    """Gradients of lookups between ``backward`` and the step that applies them.

    Several backward passes of one step add up, as those of a framework's parameters do.

    Args:
        advice: Call that a program has to make so that they are applied; part of an error.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._waiting: list[tuple[Lookup, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, lookup: Lookup, gradients: Mapping[str, Any]) -> None:
        """Keep gradients, by name of the feature, of what a lookup returned.

        Raises:
            ConfigurationError: So many wait that the program has forgotten to apply them.
        """
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] is lookup and last[1].keys().isdisjoint(gradients):
            last[1].update(gradients)
            return
        if len(self._waiting) >= MAX_WAITING:
            raise ConfigurationError(
                f"gradients of {MAX_WAITING} lookups of embeddings were never applied: "
                f"{self._advice}"
            )
        self._waiting.append((lookup, dict(gradients)))

    def clear(self) -> None:
        """Forget all of them."""
        self._waiting = []

    def apply(self, scale: float | None = None) -> None:
        """Train the tables: in ``strategy.run`` with the push of the step, outside at once.

        Args:
            scale: Number to multiply the gradients by; None: 1.

        Raises:
            ShapeMismatchError: A gradient has another shape than what was looked up.
        """
        waiting, self._waiting = self._waiting, []
        by_table: dict[int, tuple[Any, list[IndexedSlices]]] = {}
        for lookup, gradients in waiting:
            for table, rows in lookup.row_gradients(_scaled(gradients, scale)):
                by_table.setdefault(id(table), (table, []))[1].append(rows)
        if waiting:
            together = [(table, sum_rows(rows)) for table, rows in by_table.values()]
            apply_rows(waiting[0][0].strategy, together)


def _scaled(gradients: Mapping[str, Any], scale: float | None) -> Mapping[str, Any]:
    if scale is None:
        return gradients
    hosts = {name: to_host(gradient) for name, gradient in gradients.items()}
    return {name: gradient * gradient.dtype.type(scale) for name, gradient in hosts.items()}
