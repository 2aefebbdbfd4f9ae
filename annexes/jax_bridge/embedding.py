"""Tables of ``rw.embedding`` in a JAX program: functions of rows, and gradients that are rows.

A compiled function cannot wait for rows. So they are looked up before it runs and are an argument
of it, and the gradient for that argument is that of the rows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...training.extras import require
from ..embedding.features.tables import Embeddings, Lookup, WaitingGradients
from .arrays import on_device

jax: Any = require("jax", "jax")

__all__ = ["RowGradients", "embedding_lookup", "value_and_grad"]


class RowGradients(Mapping[str, Any]):
    """Gradients of the rows of one lookup, as arrays of JAX by name of the feature.

    Args:
        lookup: Lookup of the rows.
        gradients: The gradients, each of the shape of its feature's rows.
    """

    def __init__(self, lookup: Lookup, gradients: Mapping[str, Any]) -> None:
        self._lookup, self._gradients = lookup, gradients

    def __getitem__(self, feature: str) -> Any:
        return self._gradients[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)

    def apply(self, scale: float | None = None) -> None:
        """Train the tables: in ``strategy.run`` with the push of the step, outside at once.

        ``TrainState.apply_gradients(gradients, rows=…)`` does it in one push with the parameters.

        Args:
            scale: Number to multiply the gradients by; None: 1.
        """
        waiting = WaitingGradients("call apply")
        waiting.add(self._lookup, self._gradients)
        waiting.apply(scale)


def embedding_lookup(
    embeddings: Embeddings, ids: Mapping[str, Any], weights: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Look up the rows of some features, as arrays of JAX. Not in a function that JAX compiles.

    Args:
        embeddings: The tables.
        ids: Ids, as ``Embeddings.lookup`` takes them.
        weights: Weights, as ``Embeddings.lookup`` takes them.

    Returns:
        Rows by name of the feature: array of shape ``(examples, dim)``, or of shape ``(examples,
        max_sequence_length, dim)``.
        max_sequence_length, dim)``.

    Raises:
        Exception: What ``Embeddings.lookup`` raises.
    """
    return _on_device(embeddings.lookup(ids, weights))


def value_and_grad(
    function: Callable[..., Any], embeddings: Embeddings, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Make a function of a function's value and its gradients for parameters and for rows, as
    ``jax.value_and_grad``. As ``jax.value_and_grad``.

    ::

        def loss(params, rows, labels):         # rows["user"]: (examples, dim)
            ...

        loss_and_gradients = rw.training.jax.value_and_grad(loss, embeddings)
        value, (gradients, rows) = loss_and_gradients(state.params, {"user": ids}, labels)
        state.apply_gradients(gradients, rows=rows)

    The function is compiled once for each set of shapes. That of rows is the number of examples,
    however many ids these have.

    Args:
        function: ``function(params, rows, *args)`` returns a scalar, or with ``has_aux`` a pair of
            a scalar and anything else.
        embeddings: The tables.
        has_aux: Whether the function returns such a pair.

    Returns:
        ``call(params, ids, *args, weights=None)``, which returns ``(value, (gradients, rows))``:
        what ``function`` returned, the gradient for ``params``, and :class:`RowGradients`. ``ids``
        and ``weights`` are those of ``Embeddings.lookup``.

    Raises:
        MissingExtraError: JAX is not installed.
    """
    compiled = jax.jit(jax.value_and_grad(function, argnums=(0, 1), has_aux=has_aux))

    def call(
        params: Any,
        ids: Mapping[str, Any],
        *args: Any,
        weights: Mapping[str, Any] | None = None,
    ) -> Any:
        lookup = embeddings.lookup(ids, weights)
        value, (gradients, of_rows) = compiled(params, _on_device(lookup), *args)
        return value, (gradients, RowGradients(lookup, of_rows))

    return call


def _on_device(lookup: Lookup) -> dict[str, Any]:
    return dict(zip(lookup, on_device(list(lookup.values())), strict=True))
