"""Options of distributed input, as TensorFlow's."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, get_type_hints

SHARD_HINT = -1
"""``dataset.shard(SHARD_HINT, SHARD_HINT)``: shard here, under the policy HINT."""

INFINITE_CARDINALITY = -1
"""Cardinality of a dataset that never ends."""

UNKNOWN_CARDINALITY = -2
"""Cardinality of a dataset of unknown length."""

AUTOTUNE = -1
"""TensorFlow's: choose a size or a degree of parallelism."""


class AutoShardPolicy(IntEnum):
    """The policy by which input is divided between workers, as
    ``tf.data.experimental.AutoShardPolicy``. As ``tf.data.experimental.AutoShardPolicy``.

    AUTO: FILE if the dataset reads files, else DATA. FILE: file k goes to worker ``k % n``. DATA:
    every global batch is cut, each worker takes its part. HINT: at ``shard(SHARD_HINT,
    SHARD_HINT)``. OFF: not at all.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class InputReplicationMode(Enum):
    """The number of input pipelines of a worker, as ``tf.distribute.InputReplicationMode``. As
    ``tf.distribute.InputReplicationMode``.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class _Checked:
    """An object that takes the names it has, and no other: a misspelling is an error."""

    def __setattr__(self, name: str, value: Any) -> None:
        kinds = get_type_hints(type(self))
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(
                f"Cannot set the property {name} on {type(self).__name__}{hint}", name=name
            )
        if not isinstance(value, kinds[name]):
            raise TypeError(
                f"Property {name!r} must be of type {kinds[name]}, got: {value!r} "
                f"(type: {type(value).__name__})"
            )
        super().__setattr__(name, value)


@dataclass
class DistributeOptions(_Checked):
    """``tf.data.experimental.DistributeOptions``.

    Attributes:
        auto_shard_policy: Policy by which input is divided; AUTO leaves it to the strategy:
            synchronous workers divide it; workers of a parameter-server job each go through all of
            it, in an order of their own.
    """

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO


@dataclass
class Options(_Checked):
    """``tf.data.Options``: what ``dataset.with_options`` takes.

    Attributes:
        experimental_distribute: Options of how input is divided between workers.
        autotune: TensorFlow's, of no effect, as everything below: its attributes may be set.
        deterministic: Elements come in order in any case.
        experimental_deterministic: Spelling of TensorFlow 2.4.
        experimental_optimization: There is no graph to optimize.
        experimental_slack: TensorFlow's.
        experimental_symbolic_checkpoint: Iterators keep their place by themselves.
        experimental_warm_start: TensorFlow's.
        threading: Elements are made in one thread.
    """

    experimental_distribute: DistributeOptions = field(default_factory=DistributeOptions)
    autotune: SimpleNamespace = field(default_factory=SimpleNamespace)
    deterministic: bool | None = None
    experimental_deterministic: bool | None = None
    experimental_optimization: SimpleNamespace = field(default_factory=SimpleNamespace)
    experimental_slack: bool | None = None
    experimental_symbolic_checkpoint: bool | None = None
    experimental_warm_start: bool | None = None
    threading: SimpleNamespace = field(default_factory=SimpleNamespace)


class _InputFields(NamedTuple):
    experimental_fetch_to_device: bool
    experimental_replication_mode: InputReplicationMode
    experimental_place_dataset_on_device: bool
    experimental_per_replica_buffer_size: int


class InputOptions(_InputFields):
    """Options of input, as ``tf.distribute.InputOptions``, a named tuple. None stands for the
    default of an option.

    Args:
        experimental_fetch_to_device: Copy batches to the replicas' devices ahead of use; by default
            True.
        experimental_replication_mode: Number of pipelines: one per worker (the default), or per
            replica (``distribute_datasets_from_function`` alone).
        experimental_place_dataset_on_device: TensorFlow's, of no effect.
            ``distribute_datasets_from_function`` wants PER_REPLICA with it, and no fetching.
        experimental_per_replica_buffer_size: Steps prepared ahead, in a thread, by default 1; 0:
            none, without one.
        experimental_prefetch_to_device: ``experimental_fetch_to_device``, as TensorFlow 2.4 spelled
            it.

    Raises:
        ValueError: Two names of one option contradict each other, or the buffer size is negative.
    """

    __slots__ = ()

    def __new__(
        cls,
        experimental_fetch_to_device: bool | None = None,
        experimental_replication_mode: InputReplicationMode | None = None,
        experimental_place_dataset_on_device: bool | None = None,
        experimental_per_replica_buffer_size: int | None = None,
        experimental_prefetch_to_device: bool | None = None,
    ) -> Self:
        """See the class."""
        older, fetch = experimental_prefetch_to_device, experimental_fetch_to_device
        if older is not None and fetch is not None and older is not fetch:
            raise ValueError(
                f"experimental_fetch_to_device={fetch} and experimental_prefetch_to_device={older} "
                "are two names of one option; give the first one"
            )
        mode, size = experimental_replication_mode, experimental_per_replica_buffer_size
        if size is not None and size < 0:
            raise ValueError(f"experimental_per_replica_buffer_size must be >= 0, got {size}")
        return super().__new__(
            cls,
            next((value for value in (fetch, older) if value is not None), True),
            InputReplicationMode.PER_WORKER if mode is None else mode,
            bool(experimental_place_dataset_on_device),
            1 if size is None else size,
        )

    @property
    def experimental_prefetch_to_device(self) -> bool:
        """``experimental_fetch_to_device``, as TensorFlow 2.4 spelled it."""
        return self.experimental_fetch_to_device

    def check_placement(self) -> None:
        """Check that ``distribute_datasets_from_function`` takes them, as TensorFlow's does.

        Raises:
            ValueError: A dataset is placed on devices per worker, or fetched there as well.
        """
        if not self.experimental_place_dataset_on_device:
            return
        if self.experimental_replication_mode is not InputReplicationMode.PER_REPLICA:
            raise ValueError(
                "When `experimental_place_dataset_on_device` is set for dataset placement, you "
                "must also specify `PER_REPLICA` for the replication mode"
            )
        if self.experimental_fetch_to_device:
            raise ValueError(
                "`experimental_place_dataset_on_device` can not be set to True when "
                "experimental_fetch_to_device is True and replication mode is set to `PER_REPLICA`"
            )


@dataclass(frozen=True, eq=False)
class InputContext:
    """The context of an input function, as ``tf.distribute.InputContext``, equal to itself alone.
    As ``tf.distribute.InputContext``, equal to itself alone.

    Attributes:
        num_input_pipelines: Number of pipelines.
        input_pipeline_id: Number of this pipeline among them.
        num_replicas_in_sync: Replicas that share a global batch.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Compute the batch size of one replica.

        Raises:
            ValueError: The global batch does not divide evenly.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"The `global_batch_size` {global_batch_size} is not divisible by "
                f"`num_replicas_in_sync` {self.num_replicas_in_sync}"
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )
