"""Combined rows of several features for compiled steps of JAX; see :mod:`.jax_rows`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...training.extras import require
from ..embedding.features.tables import Embeddings, Lookup, WaitingGradients
from .feature_shapes import NEVER_APPLIED, rows_shape

jax: Any = require("jax", "keras")


class FedFeatureReader:
    """Gives the calls of one ``DistributedEmbedding`` in a step their rows.

    All of a step's rows are one flat array, which stands for the layer's small weight.

    Args:
        layer: The layer.
        embeddings: Tables of the layer.

    Attributes:
        layer: The layer.
        waiting: Gradients for the end of the step.

    Raises:
        ConfigurationError: A table grows, and JAX has no integers of 64 bits.
    """

    def __init__(self, layer: Any, embeddings: Embeddings) -> None:
        if embeddings.growing and not jax.config.jax_enable_x64:
            raise ConfigurationError(
                f"table {embeddings.growing[0]!r} grows, so its keys are any int64, of which JAX "
                'keeps 32 bits unless told: jax.config.update("jax_enable_x64", True) when the '
                "program begins",
                table=embeddings.growing[0],
            )
        self.layer, self._embeddings = layer, embeddings
        self.waiting = WaitingGradients(NEVER_APPLIED)
        self._calls: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._mode: Literal["ask", "given", ""] = ""
        self._next = 0
        self._lookups: list[Lookup] = []
        self._features = {feature.name: feature for feature in embeddings.features}

    def read(self, ids: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the rows of the step; outside of one as they are now."""
        shapes = {n: rows_shape(self._features[n], array.shape[0]) for n, array in ids.items()}
        if self._mode == "given":
            return {name: self._taken(shape) for name, shape in shapes.items()}
        if self._mode == "ask":
            self._calls.append((dict(ids), dict(weights)))
            return {name: jax.numpy.zeros(shape, "float32") for name, shape in shapes.items()}
        if any(isinstance(array, jax.core.Tracer) for array in ids.values()):
            raise ConfigurationError(
                f"{self.layer.name!r} is called in a function that JAX compiles, which cannot wait "
                "for rows of its tables; call the model outside, or use predict"
            )
        looked_up = self._embeddings.lookup(_on_host(ids), _on_host(weights))
        return {name: jax.numpy.asarray(rows) for name, rows in looked_up.items()}

    def _taken(self, shape: tuple[int, ...]) -> Any:
        start, self._next = self._next, self._next + int(np.prod(shape))
        return self.layer._rows.value[start : self._next].reshape(shape)

    # -- of a step ---------------------------------------------------------------------------

    @contextmanager
    def mode(self, mode: Literal["ask", "given"]) -> Iterator[None]:
        """Set the mode while a function is traced."""
        self._mode, self._next, self._calls = mode, 0, []
        try:
            yield
        finally:
            self._mode = ""

    def asked(self) -> Any:
        """Collect ids and weights that each call asks for in the first function."""
        return self._calls

    def rows(self, asked: Any) -> Array:
        """Look up combined rows of all calls and features, flat."""
        self._lookups = []
        for ids, weights in asked:  # whose names JAX has sorted
            own = {name: ids[name] for name in self._features}
            self._lookups.append(self._embeddings.lookup(own, weights))
        parts = [rows.reshape(-1) for lookup in self._lookups for rows in lookup.values()]
        flat: Array = np.concatenate([np.zeros(0, np.float32), *parts], dtype=np.float32)
        return flat

    def note(self, gradient: Array, asked: Any) -> None:  # noqa: ARG002
        """Keep the gradient of the last :meth:`rows` for the end of the step."""
        start = 0
        for lookup in self._lookups:
            gradients = {}
            for name, rows in lookup.items():
                stop = start + rows.size
                gradients[name] = gradient[start:stop].reshape(rows.shape)
                start = stop
            self.waiting.add(lookup, gradients)


def _on_host(arrays: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in arrays.items()}
