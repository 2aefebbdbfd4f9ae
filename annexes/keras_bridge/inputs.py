"""Input of ``fit`` and ``evaluate`` that is the strategy's: DatasetCreator, and our datasets."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.errors import ConfigurationError
from ...distribute.base.values import PerReplica, map_structure
from ...distribute.data.dataset import Dataset
from ...distribute.data.distributed import DistributedDataset, own_batches
from ...distribute.data.options import InputContext, InputOptions
from ...distribute.strategies.strategy import Strategy


class DatasetCreator:
    """A dataset for each worker. As ``tf.keras.utils.experimental.DatasetCreator``.

    ::

        def make(context):
            part = slice(context.input_pipeline_id, None, context.num_input_pipelines)
            return rw.data.from_arrays((x[part], y[part]), batch_size=32, epochs=None)

        model.fit(rw.training.keras.DatasetCreator(make), epochs=5, steps_per_epoch=100)

    ``fit`` calls the function once on every worker. TensorFlow gives it the same context on each;
    here the context has the worker's number among them.

    Args:
        dataset_fn: ``dataset_fn(InputContext)`` gives what ``fit`` takes: a ``rw.data`` dataset,
            ``tf.data``, a ``DataLoader``, a ``PyDataset``, or a generator of batches.
        input_options: TensorFlow's, of no effect: what is prefetched is the dataset's.

    Raises:
        TypeError: ``dataset_fn`` cannot be called, or ``input_options`` are none.
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        input_options: InputOptions | None = None,
    ) -> None:
        if not callable(dataset_fn):
            raise TypeError(
                "`dataset_fn` for `DatasetCreator` must be a `callable`, got "
                f"{type(dataset_fn).__name__}"
            )
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise TypeError(
                "`input_options` for `DatasetCreator` must be `InputOptions`, got "
                f"{type(input_options).__name__}"
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, context: InputContext) -> Any:
        """Make the dataset of one worker.

        Raises:
            TypeError: ``dataset_fn`` returned none.
        """
        dataset = self.dataset_fn(context)
        is_iterable = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
        if not is_iterable or isinstance(dataset, list | tuple | dict | str | np.ndarray):
            raise TypeError(
                "the `dataset_fn` provided to `DatasetCreator` must return a dataset of batches, "
                f"and returned a {type(dataset).__name__}; of arrays make one with "
                "rw.data.from_arrays(arrays, batch_size)"
            )
        return dataset


def as_input(given: Any, strategy: Strategy, steps: int | None) -> Any:
    """Convert the input of ``fit`` to a form that Keras takes.

    Args:
        given: ``x``, or validation data.
        strategy: Strategy of the model.
        steps: Steps per epoch, or per evaluation; None: not specified.

    Raises:
        ConfigurationError: A DatasetCreator without a number of steps.
    """
    if isinstance(given, DatasetCreator):
        if steps is None:
            raise ConfigurationError(
                "a DatasetCreator may make datasets without an end, so the number of steps must be "
                "given: steps_per_epoch, or validation_steps, or steps of evaluate"
            )
        extended = strategy.extended
        given = given(
            InputContext(
                extended.num_input_pipelines,
                extended.input_pipeline_id,
                strategy.extended.num_replicas_in_sync,
            )
        )
    return _adapted(given) if isinstance(given, Dataset | DistributedDataset) else given


def _adapted(dataset: Dataset | DistributedDataset) -> Any:
    """Wrap a dataset of ours as a data adapter of Keras, which goes through it once per epoch."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    class Adapter(GeneratorDataAdapter):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(_batches(dataset))
            self.generator = lambda: _batches(dataset)

    return Adapter()


def _batches(dataset: Dataset | DistributedDataset) -> Iterator[Any]:
    whole_pass = own_batches(dataset) if isinstance(dataset, DistributedDataset) else dataset
    for batch in whole_pass:
        whole = map_structure(_whole, batch)
        yield whole if isinstance(whole, tuple) else (whole,)


def _whole(leaf: Any) -> Any:
    """Join a batch that was cut for replicas: the model divides it itself."""
    if not isinstance(leaf, PerReplica):
        return leaf
    return np.concatenate([to_host(part) for part in leaf.values])
