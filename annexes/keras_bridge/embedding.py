"""An embedding whose table lives where the strategy's variables do, and is trained by rows.

``keras.layers.Embedding`` has its table as a weight: every worker has all of it, and its gradient
is as large. Here the table is a variable of the strategy, made on the servers and cut over them; a
batch brings the rows that it needs, and pushes their gradients. So it may be larger than a worker's
memory, and needs no place in it.

To Keras the layer has one small weight, ``rows``, through which the framework finds its gradient:
what a step is given in its place is the framework's matter (``jax_steps``, ``torch_steps``,
``tensorflow_steps``).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...core.rules.initializers import Initializer
from ...distribute.optimizer import Optimizer
from ...distribute.variables.variable import Variable
from .framework_steps import steps_module
from .frameworks import keras, looks_for_shapes


class RowReader(Protocol):
    """The way in which a framework's step comes by rows, and by their gradient."""

    def read(self, ids: Any) -> Any:
        """Read the rows of ids, as tensors of the framework; shape ``(*ids.shape, dim)``."""

    def take(self) -> IndexedSlices | None:
        """Take the gradient of what was read since the last time; None: nothing was."""


@keras.saving.register_keras_serializable("ropewalk")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """Turns integers into rows of a table on the servers.

    ::

        strategy = rw.distribute.ParameterServerStrategy(
            variable_partitioner=rw.distribute.partitioners.MaxSizePartitioner(64 << 20)
        )
        with strategy.scope():
            model = keras.Sequential([
                keras.Input((26,), dtype="int32"),
                rw.training.keras.Embedding(5_000_000, 16),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ])
            model.compile("adagrad", "mse")

    The table is made when the model is distributed, under the layer's path and ``/embeddings``. It
    is in the job's checkpoints, and in no file of Keras. Slot variables of rows that a step does
    not touch stay as they are ("lazy"), where ``keras.layers.Embedding`` updates all.

    Args:
        input_dim: Number of rows of the table.
        output_dim: Number of elements in each row.
        embeddings_initializer: Initializer listed in docs/embeddings.md, or its name. Rows are made
            on the servers.
        optimizer: Optimizer of ``rw.optimizers`` for this table; None: that of the model, which
            must then have a rule.
        mask_zero: Whether id 0 is padding, as in ``keras.layers.Embedding``.
        kwargs: Arguments of any layer: ``name``, ``dtype``.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str | Initializer | Mapping[str, Any] = "random_uniform",
        *,
        optimizer: Optimizer | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(embeddings_initializer, Mapping):
            embeddings_initializer = Initializer(**embeddings_initializer)
        elif isinstance(embeddings_initializer, str):
            embeddings_initializer = Initializer(embeddings_initializer)
        self.input_dim, self.output_dim = int(input_dim), int(output_dim)
        self.embeddings_initializer = embeddings_initializer
        self.optimizer = optimizer
        self.mask_zero = self.supports_masking = mask_zero
        self.supports_jit = steps_module().COMPILES_ROWS
        self._reader: RowReader | None = None
        self._rows: Any = None

    def build(self, input_shape: Any = None) -> None:  # noqa: ARG002
        """Make the small weight."""
        self._rows = self.add_weight(
            name="rows", shape=(1, self.output_dim), initializer="zeros", trainable=True
        )

    def make_table(self, name: str) -> Variable:
        """Make the table, a variable of the current strategy.

        Args:
            name: Prefix of the model's weights, put in front of the path; may be empty.
        """
        return Variable(
            initializer=self.embeddings_initializer,
            shape=(self.input_dim, self.output_dim),
            name=f"{name}{self.path}/embeddings",
        )

    def read_from(self, reader: RowReader) -> None:
        """Read rows by this from now on."""
        self._reader = reader

    def call(self, inputs: Any) -> Any:
        """Rows, shape ``(*inputs.shape, output_dim)``.

        Raises:
            ConfigurationError: The model is not distributed, so there is no table.
        """
        if not keras.backend.is_int_dtype(inputs.dtype):
            inputs = keras.ops.cast(inputs, "int32")
        if looks_for_shapes():
            shape = (*keras.ops.shape(inputs), self.output_dim)
            return keras.ops.zeros(shape, self.compute_dtype)
        if self._reader is not None:
            return keras.ops.cast(self._reader.read(inputs), self.compute_dtype)
        raise ConfigurationError(
            f"{self.name!r} has no table: its model is not distributed. Make and compile it in "
            "`with strategy.scope():`, and build it by its inputs, not by a call"
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Compute ``(*input_shape, output_dim)``."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Compute the shape without a call, which needs a table."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:  # noqa: ARG002
        """Compute where ids are not 0."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def get_config(self) -> dict[str, Any]:
        """Return the configuration for a file; an optimizer of the table's own is not in it."""
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": {
                "name": initializer.name,
                "seed": initializer.seed,
                "arguments": dict(initializer.arguments),
            },
            "mask_zero": self.mask_zero,
        }


def embeddings_of(model: Any) -> list[Embedding]:
    """Find the layers of a model that are embeddings of ours, each once."""
    by_id = {id(layer): layer for layer in model._flatten_layers() if isinstance(layer, Embedding)}
    return list(by_id.values())
