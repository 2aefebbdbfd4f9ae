"""Keras on PyTorch: every operation runs at once, and the optimizer is given ``Tensor.grad``.

The model's own ``train_step`` runs, with an optimizer whose ``apply`` pushes the gradients and
loads what comes back into the same parameters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...distribute.variables.variable import Variable
from ..embedding.features.tables import Embeddings
from ..torch_bridge.embedding import EmbeddingBagCollection
from ..torch_bridge.tensors import copy_into, to_array, to_tensor, torch
from .eager_steps import EagerSteps, joined
from .loop_state import plainly

COMPILES_ROWS = False
"""``torch.compile`` has nothing to compile in a read of rows."""


class TorchRowReader:
    """Rows of a table as leaves of the graph that ``backward`` goes through.

    Args:
        table: Table of the strategy.
    """

    def __init__(self, table: Variable) -> None:
        self._table = table
        self._reads: list[tuple[Array, Any]] = []

    def read(self, ids: Any) -> Any:
        """Read rows, of the same memory as they came in."""
        asked = to_array(ids)
        rows = to_tensor(to_host(self._table.sparse_read(asked))).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._reads.append((asked, rows))
        return rows

    def take(self) -> IndexedSlices | None:
        """Take the gradient of all reads that the loss depends on."""
        reads, self._reads = self._reads, []
        parts = [(ids, to_array(rows.grad)) for ids, rows in reads if rows.grad is not None]
        return joined(parts)


class LeafFeatureReader:
    """Combined rows as leaves of the graph that ``backward`` goes through.

    Args:
        embeddings: The tables.

    Attributes:
        waiting: Gradients for the end of the step.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._bags = EmbeddingBagCollection(embeddings)
        self.waiting = self._bags.waiting

    def read(self, ids: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read combined rows as the collection of PyTorch does."""
        rows: dict[str, Any] = self._bags(ids, weights).to_dict()
        return rows


class TorchSteps(EagerSteps):
    """Steps of Keras on PyTorch."""

    def array(self, variable: Any) -> Array:
        """Read a variable's value, of the same memory on the CPU."""
        return to_array(variable._value)

    def assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assign values to the same parameters."""
        copy_into([(v._value, value) for v, value in zip(variables, values, strict=True)])

    def mark(self, variable: Any) -> object:
        """Return a mark of PyTorch's count of what is done to a tensor in place."""
        tensor = variable._value
        return id(tensor), tensor._version

    def on_host(self, variable: Any) -> bool:
        """Return whether a variable is not on a GPU."""
        return bool(variable._value.is_cpu)

    def gradient(self, tensor: Any) -> Array:
        """Read a gradient, of the same memory on the CPU."""
        return to_array(tensor.to_dense() if tensor.is_sparse else tensor)

    def tensor(self, gradient: Array, variable: Any) -> Any:
        """Make a tensor on the parameter's device."""
        return to_tensor(gradient).to(variable._value)

    def apply_here(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Keras' own."""
        optimizer = self._weights.optimizer
        with torch.no_grad(), plainly():
            type(optimizer).apply(optimizer, gradients, variables)

    def make_train_function(self) -> None:
        """Keras' own function, with the optimizer's ``apply`` taken while it runs."""
        model = self._model
        self.begin()
        type(model).make_train_function(model, force=True)
        run = model.train_function

        def step(data: Any) -> Any:
            self.follow()
            before = self._weights.steps
            with self._taking_gradients():
                logs = run(data)
            if self._weights.steps != before + 1:
                raise ConfigurationError(
                    f"train_step of {type(model).__name__} has to call self.optimizer.apply once; "
                    f"it called it {self._weights.steps - before} times"
                )
            return logs

        model.train_function = step

    def new_reader(self, layer: Any, table: Variable) -> TorchRowReader:  # noqa: ARG002
        """Make a reader by the table alone."""
        return TorchRowReader(table)

    def new_feature_reader(self, layer: Any, embeddings: Embeddings) -> LeafFeatureReader:  # noqa: ARG002
        """Make a reader by the tables alone."""
        return LeafFeatureReader(embeddings)

    def use_reader(self, reader: Any) -> None:
        """Do nothing: the reader asks by itself."""

    @contextmanager
    def _taking_gradients(self) -> Iterator[None]:
        optimizer = self._weights.optimizer

        def apply(gradients: Any, trainable_variables: Any = None) -> None:
            trained = trainable_variables or list(self._trainable.values())
            if any(self._weights.name_of(v) not in self._trainable for v in trained):
                self.begin()  # a part was frozen, and trains again
            with torch.no_grad():
                self.push(list(gradients), list(trained))

        # Of a step that torch.compile compiles, this part stays as it is.
        object.__setattr__(optimizer, "apply", torch.compiler.disable(apply))
        try:
            yield
        finally:
            object.__delattr__(optimizer, "apply")


STEPS = TorchSteps
