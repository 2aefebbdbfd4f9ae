"""Strategy: the interface of every strategy; the algorithms are in ``extended.py``."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Self

from ...core import annexes
from ...core.process.frameworks import watch_imports
from ...core.process.tracebacks import fold_uncaught
from ...core.terminal import Shown
from ..base.contexts import (
    Frame,
    default_strategy,
    pop_frame,
    push_frame,
    require_cross_replica,
    require_own_cross_replica,
    top_frame,
)
from ..base.devices import HOST
from ..base.interface import Arguments, Keywords, require_call_arguments
from ..base.reductions import ReduceOp, axis_number
from ..base.values import (
    DistributedValues,
    PerReplica,
    ValueContext,
    local_results,
    map_structure,
    regroup,
)
from ..data.distributed import DistributedDataset
from ..data.factories import as_dataset
from ..data.options import InputContext, InputOptions
from ..data.pipelines import distribute_dataset, distribute_from_function
from ..variables.variable import Variable
from .extended import StrategyExtended


class RunOptions(NamedTuple):
    """Options of ``run``, as ``tf.distribute.RunOptions``. Accepted without effect: shapes are
    never fixed ahead.

    Attributes:
        experimental_enable_dynamic_batch_size: TensorFlow's.
        experimental_bucketizing_dynamic_shape: TensorFlow's.
        experimental_xla_options: TensorFlow's.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class Scope:
    """A scope of a strategy. Reading it in ``with … as`` gives the strategy."""

    def __init__(self, strategy: "Strategy") -> None:
        self._strategy = strategy
        self._frames: list[Frame | None] = []

    def __enter__(self) -> "Strategy":
        strategy = self._strategy
        if strategy._is_chosen:
            watch_imports()  # what was being imported when the strategy was made
        current = top_frame()
        if current is not None and current.strategy is default_strategy():
            current = None  # inside its `run`: there is no other strategy
        if current is not None and current.strategy is not strategy:
            raise RuntimeError(
                "Mixing different tf.distribute.Strategy objects: "
                f"{type(current.strategy).__name__} is current, and the scope of "
                f"{type(strategy).__name__} was entered"
            )
        if current is not None and current.replica is not None:
            require_cross_replica(strategy, "scope")
        frame = Frame(strategy, None)
        push_frame(frame)
        self._frames.append(frame)
        return strategy

    def __exit__(self, kind: object, *_: object) -> None:
        if not self._frames:
            raise RuntimeError("a strategy's scope was left that was not entered; use `with`")
        frame = self._frames.pop()
        if frame is not None:
            pop_frame(frame)
            if kind is None:
                self._strategy.extended.scope_left()
                self._strategy.scope_was_left()


class Strategy(Shown):
    """A strategy like ``tf.distribute.Strategy``: state and computation over a set of replicas."""

    _is_chosen = True  # by a program: the default strategy is there anyway

    def __init__(self, extended: StrategyExtended | None = None) -> None:
        self._extended = extended if extended is not None else StrategyExtended(self, [HOST])
        self._at_scope_ends: dict[str, Callable[[], None]] = {}
        fold_uncaught()
        if self._is_chosen:
            watch_imports()  # a framework's models are to follow its scope

    def _shown(self) -> dict[str, Any]:
        return self._extended.shown()

    @property
    def extended(self) -> StrategyExtended:
        """The strategy's algorithms."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return self._extended.num_replicas_in_sync

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: it gives variables their first values and writes checkpoints."""
        return self._extended.should_checkpoint

    @property
    def should_save(self) -> bool:
        """Whether this task is the one that writes the program's own files: the chief.

        ::

            if strategy.should_save:
                np.save("weights.npy", weights)

        ``rw.training.save`` asks this, and writes a file whole. TensorFlow has none in its API.
        """
        return bool(self._extended.should_checkpoint)

    @property
    def task_index(self) -> int:
        """Number of this task among those that train, the chief first: a seed for its input, and
        which part is its own. 0 in one process. TensorFlow has none in its API.
        """
        return self._extended.input_pipeline_id

    @property
    def num_training_tasks(self) -> int:
        """Number of tasks that train, the chief among them: so many parts an input may be cut
        into.
        """
        return self._extended.num_input_pipelines

    @property
    def cluster_resolver(self) -> Any:
        """Source of the cluster; None for one worker."""
        return None

    def barrier(self, timeout_s: float = 600.0) -> None:
        """Wait until every worker of the job is here; nothing to wait for in one process.

        Every task that runs the program must come here equally often. Of a parameter-server job
        these are chief and workers: what they pushed before the barrier is in what they read after
        it. TensorFlow has none in its API.

        Args:
            timeout_s: Longest time to wait. Unit: seconds, > 0.

        Raises:
            CollectiveTimeoutError: A worker did not come in time; names it.
            CollectiveMismatchError: One has finished its program without coming.
            PeerLostError: One was lost, of workers in sync.
            RuntimeError: In replica context.
            ValueError: ``timeout_s`` is not positive.
        """
        require_cross_replica(self, "barrier")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self._extended.barrier(timeout_s)

    def scope(self) -> Scope:
        """Make this strategy current; create variables and optimizers in it."""
        return Scope(self)

    def when_scopes_end(self, who: str, then: Callable[[], None]) -> None:
        """Have a function called when a scope was left without an error; one of each ``who``."""
        self._at_scope_ends[who] = then

    def scope_was_left(self) -> None:
        """Call these functions."""
        for then in self._at_scope_ends.values():
            then()

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Put variables where this one is, as ``extended.colocate_vars_with``, TensorFlow's newer
        name of it.
        """
        return self._extended.colocate_vars_with(colocate_with_variable)

    def run(
        self,
        fn: Callable[..., Any],
        args: Arguments = (),
        kwargs: Keywords = None,
        options: Any = None,  # noqa: ARG002 - TensorFlow's, of use on TPUs only
    ) -> Any:
        """Call ``fn`` once per local replica, each with its part of distributed arguments.

        Raises:
            ValueError: ``args`` is neither a list nor a tuple, or ``kwargs`` are no mapping.
            RuntimeError: Inside another ``run``, or in the scope of another strategy.
        """
        require_call_arguments(args, kwargs)
        frame = top_frame()
        if frame is not None and frame.replica is not None:
            default: object = default_strategy()
            if frame.strategy is not default or self is default:
                raise RuntimeError("strategy.run inside strategy.run; call the function itself")
            with self.scope():
                return self._extended.call_for_each_replica(fn, tuple(args), kwargs)
        if frame is not None and frame.strategy is not self:
            require_own_cross_replica(self, "run")
        return self._extended.call_for_each_replica(fn, tuple(args), kwargs)

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any = None) -> Any:
        """Reduce values of the replicas to one, on the host.

        Args:
            reduce_op: SUM or MEAN, also as a string in any case.
            value: Nested; PerReplica leaves are reduced.
            axis: Axes to reduce over; None: element-wise over replicas. Integer(s): over these axes
                of each replica too; MEAN is then the total sum over the total count, so uneven
                batches weigh by their size. Integer(s): over these axes of each replica too; MEAN
                is then the total sum over the total count, so uneven batches weigh by their size.

        Raises:
            RuntimeError: In replica context.
            ValueError: Another op, shapes that differ, or an axis past the rank.
        """
        require_own_cross_replica(self, "reduce")
        op = ReduceOp.of(reduce_op)
        return map_structure(
            lambda leaf: self._extended.reducer.reduce_to_host(op, leaf, axis), value
        )

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate per-replica values on the host along an axis, where lengths may differ.

        Raises:
            RuntimeError: In replica context.
            TypeError: The axis is a float.
            ValueError: Scalars, an axis that is no number or past the rank, or shapes that differ
                elsewhere.
            NotImplementedError: IndexedSlices.
        """
        axis = axis_number(axis)
        require_own_cross_replica(self, "gather")
        count = len(self._extended.replica_devices)

        def gather_leaf(leaf: Any) -> Any:
            values = leaf if isinstance(leaf, DistributedValues) else PerReplica([leaf] * count)
            return self._extended.reducer.gather_to_host(values, axis)

        return map_structure(gather_leaf, value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Split a value by local replicas; a 1-tuple of what is not distributed."""
        return local_results(value, len(self._extended.replica_devices))

    unwrap = experimental_local_results

    def group(self, value: Any, name: str | None = None) -> None:
        """Do nothing: TensorFlow joins operations of a graph. Here everything has happened
        already.
        """

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a value per local replica by ``value_fn(ValueContext)``; with one replica, the
        value.
        """
        require_cross_replica(self, "experimental_distribute_values_from_function")
        extended = self._extended
        count = len(extended.replica_devices)
        values = [
            value_fn(ValueContext(extended.first_replica + i, extended.num_replicas_in_sync))
            for i in range(count)
        ]
        return values[0] if count == 1 else regroup(values, always_wrap=True)

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None, *, ledger: str = ""
    ) -> DistributedDataset:
        """Split every global batch of a dataset over the replicas.

        Args:
            dataset: Batches: see :func:`ropewalk.data.as_dataset` for what is taken.
            options: Options of how it is sharded between workers and prefetched.
            ledger: Name under which the job keeps which examples were trained: the workers of a
                parameter-server job share the examples of each epoch, and each of them is trained
                exactly once, whichever workers are lost, come or leave (docs/ledger.md). For
                ``rw.data.from_arrays`` and ``rw.data.from_index``. Empty: each worker goes through
                all of the data.

        Raises:
            ConfigurationError: ``ledger`` is given with a dataset or a strategy that has none.
        """
        if ledger:
            distributing = annexes.the("distributing", "ledger", "a dataset with a ledger")
            dataset_of_ledger: DistributedDataset = distributing.distribute(
                self._extended, as_dataset(dataset), options, ledger
            )
            return dataset_of_ledger
        return distribute_dataset(self._extended, dataset, options)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None = None,
    ) -> DistributedDataset:
        """Distribute datasets of per-replica batches; ``dataset_fn(InputContext)`` is called once
        per worker.

        Nothing is rebatched or sharded: consecutive elements go to consecutive replicas.
        """
        return distribute_from_function(self._extended, dataset_fn, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def __copy__(self) -> NoReturn:
        raise RuntimeError("Must not copy a strategy: variables belong to one")

    def __deepcopy__(self, memo: Any) -> Self:
        raise RuntimeError("Must not copy a strategy: variables belong to one")
