"""ArrayStore: a tree of named arrays that all workers of a job share. What bridges stand on.

A bridge to a framework has to take its parameters and gradients as arrays, name them, and call four
methods: ``pull`` and ``pull_rows`` give values, ``push`` gives gradients to the update rule that
runs where the arrays are kept, ``push_delta`` adds what an optimizer on the worker has computed.
Everything else is the strategy's: where the arrays are, who else changes them, who saves them.

In ``strategy.run`` these are parts of the step, as reads and updates of variables are. Outside,
:meth:`ArrayStore.exchange` is a whole step: one round trip pushes, and brings the values back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core.arrays.any_framework import as_array
from ..core.arrays.indexed_slices import IndexedSlices
from ..distribute.base.contexts import get_replica_context, is_running, require_own
from ..distribute.base.moved_average import MovedAverage
from ..distribute.base.reductions import ReduceOp
from ..distribute.optimizer import Optimizer
from ..distribute.strategies.strategy import Strategy
from ..distribute.variables.variable import Variable
from .in_sync import workers_in_sync
from .named_arrays import NamedArrays
from .rules_by_name import RulesByName
from .worker_sums import reduce_replicas, sum_over_workers

_Value = TypeVar("_Value")

Update = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Type of a worker's own optimizer: gradients by name in, and out what to add to the values by
name.
"""

PushBeside = Callable[[float | None], None]
"""Pushes in the same step what is no array of the store, such as rows of ``rw.embedding``. Called
with the number that scales gradients of this process, or None for 1."""

Kept = Callable[[], Mapping[str, Any]]
"""Notes that a step of a worker's own optimizer counts, and returns what it has for the job's
checkpoints: overwrites variables by name."""


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A step of a store: gradients, and all that travels with them.

    Attributes:
        gradients: Gradients, as :meth:`ArrayStore.push` takes them; None: no gradients.
        update: The worker's optimizer, as :meth:`ArrayStore.push_by` takes it, which is given an
            empty dict where there are no gradients; None: the servers'.
        assigned: Values to overwrite in the same push, by name; not with replicas in sync.
        rows: Gradients of tables, by name: applied by the rule, also where ``update`` is given; in
            ``run`` of a strategy with one replica.
        kept: State to keep with ``update``, as :meth:`ArrayStore.push_by` takes it.
        averages: Moving averages, as :meth:`ArrayStore.push_averages` takes them; in sync those of
            a worker.
        reduced: Whether gradients are those of :meth:`ArrayStore.reduce`; outside of ``run``.
        beside: Pushes what is no array of the store; None: nothing. In ``run`` for a strategy with
            one replica.
    """

    gradients: Any = None
    update: Update | None = None
    assigned: Mapping[str, Any] | None = None
    rows: Mapping[str, IndexedSlices] = field(default_factory=dict)
    kept: Kept | None = None
    averages: Mapping[str, MovedAverage] = field(default_factory=dict)
    reduced: bool = False
    beside: PushBeside | None = None


class ArrayStore(NamedArrays):
    """A tree of named arrays under a strategy.

    ::

        store = rw.training.ArrayStore({"w": w, "b": b}, rw.optimizers.Adam(1e-3), strategy)
        values = store.pull()                      # {"w": …, "b": …}: read-only arrays
        store.push(gradients)                      # the same tree of gradients

    Names are paths in the tree: ``{"layers": [{"w": …}]}`` has ``layers/0/w``. They are the names
    of variables, so checkpoints, the status and errors have them.

    Args:
        arrays: First values, as a nested structure of dicts, lists and tuples; the chief's count.
            A leaf may be a :class:`Variable` made under the strategy, such as a table whose values
            are made on the servers.
        optimizer: Optimizer whose rule is applied to what is pushed; or one for each name; None:
            only ``push_delta`` and ``assign`` change values.
        strategy: Strategy under which the arrays live; None: the current one.
        name: Comes first in every name.
        mean: Gradients of replicas in sync are averaged, for losses that are means over a replica's
            examples; False: added up.
        of_worker: :meth:`exchange` is given what all replicas of this process have made together,
            and ``mean`` is over workers: for a framework that adds up over its devices by itself.
        tables: Variables by name that are read by their names or by rows alone: no tree has them.

    Attributes:
        strategy: Strategy under which the arrays live.
        mean: Whether gradients are averaged, as the constructor was told; may be changed between
            two steps.
        variables: Variables by name.

    Raises:
        ValueError: Two leaves have one name, or a variable is another strategy's.
        DefinitionMismatchError: Another task has an array of this name and of another shape or
            dtype.
    """

    def __init__(
        self,
        arrays: Any,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        strategy: Strategy | None = None,
        *,
        name: str = "",
        mean: bool = False,
        of_worker: bool = False,
        tables: Mapping[str, Variable] | None = None,
    ) -> None:
        super().__init__(arrays, strategy, name, tables)
        self.mean = mean
        self._of_worker = of_worker
        self._rules = RulesByName(self.variables, optimizer)

    # -- updates -----------------------------------------------------------------------------

    def push(self, gradients: Any) -> None:
        """Apply gradients by the rule where the arrays are.

        In ``run`` they travel at the end of the step; outside at once.

        Args:
            gradients: The tree, or a mapping of names: arrays, IndexedSlices for some rows, or None
                for none.

        Raises:
            UnknownVariableError: The store has no array of such a name.
            ConfigurationError: One has no optimizer.
            ShapeMismatchError: A gradient is not of its array's shape.
        """
        for optimizer, pairs in self.updates(gradients, self.scale):
            optimizer.apply_gradients(pairs)

    def updates(
        self, gradients: Any, scale: float | None = None
    ) -> list[tuple[Optimizer, list[tuple[Any, Variable]]]]:
        """Collect what each optimizer has to apply: pairs of gradient and variable.

        Args:
            gradients: Gradients, as :meth:`push` takes them.
            scale: Multiplies them; None: they stay as they are.

        Raises:
            UnknownVariableError: The store has no array of such a name.
            ConfigurationError: One has no optimizer.
        """
        return self._rules.updates(self._by_name(gradients), scale)

    def push_by(self, update: Update, gradients: Any, *, kept: Kept | None = None) -> None:
        """Let an optimizer of this worker make deltas of gradients, and push those.

        Between replicas in sync gradients are reduced first, so that each worker's optimizer is
        given the same ones and makes the same deltas: a worker adds its own to its copy.
        Asynchronous workers push what each has made of its own gradients, and the deltas add up.

        Args:
            update: Is called once per worker.
            gradients: The tree, or a mapping of names.
            kept: Is called after ``update``, unless its deltas are refused for NaN or infinity, so
                that the optimizer's state has to go back to what it was. Returns what to overwrite
                in the same push: with asynchronous workers the chief alone has something, between
                workers in sync all have.
        """
        named = {name: g for name, g in self._by_name(gradients).items() if g is not None}
        for name in named:
            self._found(name)
        if self.strategy.extended.num_replicas_in_sync == 1:
            self._push_made(update(named), kept)
            return
        context = get_replica_context()
        if context is None or not is_running(self.strategy):
            raise _no_replica(self.strategy, "push_by")

        def merged(strategy: Strategy, *columns: Any) -> None:
            op = ReduceOp.MEAN if self.mean else ReduceOp.SUM
            self._push_made(update(reduce_replicas(strategy, op, named, columns)), kept)

        context.merge_call(merged, tuple(named.values()))

    def _push_made(self, deltas: Mapping[str, Any], kept: Kept | None) -> None:
        pushed = self._made(deltas, kept)
        if pushed is not None:
            added, state = pushed
            self.push_delta(added)
            self.assign(state)

    def _made(
        self, deltas: Mapping[str, Any], kept: Kept | None
    ) -> tuple[dict[str, Any], Mapping[str, Any]] | None:
        """Collect what a worker's own optimizer has made: what is added, and what is overwritten,
        by name.

        None: it is refused, and what the optimizer has now may be NaN, too.
        """
        arrays = {
            name: delta if isinstance(delta, IndexedSlices) else as_array(delta)
            for name, delta in deltas.items()
            if delta is not None
        }
        if self.strategy.extended.refuses_deltas(arrays):
            return None
        return arrays, {} if kept is None else kept()

    def push_averages(self, moved: Mapping[str, MovedAverage]) -> None:
        """Have moving averages go on from where this replica's step took them; part of a step.

        The steps of all asynchronous workers count, in whatever order they arrive. Between replicas
        in sync, averages are averaged; counters are the same on all of them.

        Args:
            moved: Change that the step made to each average, by name.

        Raises:
            UnknownVariableError: The store has no array of such a name.
            RuntimeError: Outside of ``run``, with several replicas in this process.
        """
        if self.strategy.extended.num_replicas_in_sync == 1:
            self.strategy.extended.move_averages(self._pairs(moved))
            return
        context = get_replica_context()
        if context is None or not is_running(self.strategy):
            raise _no_replica(self.strategy, "push_averages")

        def merged(strategy: Strategy, *columns: Any) -> None:
            means = reduce_replicas(strategy, ReduceOp.MEAN, moved, columns)
            reduced = {name: average._replace(after=means[name]) for name, average in moved.items()}
            strategy.extended.move_averages(self._pairs(reduced))

        context.merge_call(merged, tuple(average.after for average in moved.values()))

    def _pairs(self, values: Mapping[str, _Value]) -> list[tuple[Variable, _Value]]:
        return [(self._found(name), value) for name, value in values.items()]

    def exchange(self, step: Any = None, *, in_run: bool = False) -> Any:
        """Make a step, outside of ``run``: push, and return the values that come back.

        With parameter servers it is one round trip, and values lack what other workers push later.

        Args:
            step: Gradients, as :meth:`push` takes them, or a :class:`ModelStep`.
            in_run: Make a part of a step of ``run`` instead: push at once, and return what comes of
                it. Gradients of the replicas in sync are added up, as those of ``apply_gradients``
                are. Each replica has to call this.

        Returns:
            The tree of values after the step.

        Raises:
            RuntimeError: In ``run``, or with several replicas in this process, unless the store is
                ``of_worker``; with ``in_run`` outside of it.
        """
        step = step if isinstance(step, ModelStep) else ModelStep(step)
        if in_run:
            return self._tree(self._in_run(step))
        if is_running(self.strategy):
            raise RuntimeError("exchange is a step of its own; in strategy.run use pull and push")
        extended = self.strategy.extended
        several, in_sync = len(extended.replica_devices) > 1, extended.num_replicas_in_sync > 1
        if several and not self._of_worker:
            raise _no_replica(self.strategy, "exchange")
        if several or step.reduced or (step.averages and in_sync):
            self.strategy.run(lambda: self._push_of_worker(step))
        elif (
            step.rows
            or step.beside is not None
            or (in_sync and (step.update is not None or step.assigned is not None))
        ):
            self.strategy.run(lambda: self._push_of_replica(step))
        else:
            return self._tree(self._without_replica(step))
        return self._tree(extended.read_all(self._all, arrived=True))

    def _gradients_of(self, step: ModelStep) -> dict[str, Any]:
        return {n: g for n, g in self._named(step).items() if g is not None}

    def _named(self, step: ModelStep) -> Mapping[str, Any]:
        return self._by_name({} if step.gradients is None else step.gradients)

    def _without_replica(self, step: ModelStep) -> list[Any]:
        """Make a step in which no replica takes part: what it pushes is known when it begins."""
        require_own(self.strategy, "this store")
        gradients, assigned = self._named(step), step.assigned or {}
        added: Mapping[str, Any] = {}
        moves = self._pairs(step.averages)
        if step.update is not None:
            made = self._made(step.update(self._gradients_of(step)), step.kept)
            gradients, moves = {}, [] if made is None else moves
            added, state = ({}, {}) if made is None else made
            assigned = {**state, **assigned}
        return self.strategy.extended.apply_and_read(
            self.updates(gradients, self.scale),
            self._all,
            moves,
            added=self._pairs(added),
            assigned=self._pairs(assigned),
        )

    def _push_of_replica(self, step: ModelStep) -> None:
        """Give the step of a replica, the only one of this process, what it pushes."""
        extended = self.strategy.extended
        extended.will_read(self._all)
        if step.update is not None:
            self.push_by(step.update, self._gradients_of(step), kept=step.kept)
        else:
            self.push(self._gradients_of(step))
        if step.rows:
            self.push(step.rows)
        if step.beside is not None:
            step.beside(self.scale)
        extended.move_averages(self._pairs(step.averages))
        if step.assigned is not None:
            self.assign(step.assigned)

    def _push_of_worker(self, step: ModelStep) -> None:
        """Give the replicas' step what it pushes, all of it once: in their merge."""
        strategy, replicas = self.strategy, len(self.strategy.extended.replica_devices)
        workers = workers_in_sync(strategy)
        scale = 1.0 / workers if self.mean and workers > 1 else None
        gradients = self._gradients_of(step)

        def merged(_: Strategy) -> None:
            # Counters are the same on all workers, which make their steps together.
            means = {n: average.after for n, average in step.averages.items() if average.decay}
            pushes = {**gradients, **step.rows}
            summed, means = sum_over_workers(
                strategy, {} if step.reduced else pushes, means, mean=self.mean
            )
            reduced = pushes if step.reduced else summed
            for optimizer, pairs in self._reduced_updates(step, gradients, reduced):
                optimizer.apply_gradients(pairs)
            if step.beside is not None and replicas > 1:
                step.beside(scale)
            moved = {
                n: average._replace(after=means.get(n, average.after))
                for n, average in step.averages.items()
            }
            strategy.extended.move_averages(self._pairs(moved))
            if step.assigned:
                self.assign(step.assigned)

        strategy.extended.will_read(self._all)
        context = get_replica_context()
        assert context is not None  # noqa: S101 - in run
        if step.beside is not None and replicas == 1:
            step.beside(scale)
        context.merge_call(merged)

    def _in_run(self, step: ModelStep) -> list[Any]:
        """Push a part of the step of ``run``, and read what comes of it."""
        context = get_replica_context()
        if context is None or not is_running(self.strategy):
            raise RuntimeError("in_run is for a part of strategy.run; outside leave it out")
        gradients = self._gradients_of(step)
        if step.averages:
            self.push_averages(step.averages)

        def merged(strategy: Strategy, *columns: Any) -> list[Any]:
            extended = strategy.extended
            reduced = dict(zip(gradients, columns, strict=True))
            if extended.num_replicas_in_sync > 1:
                reduced = reduce_replicas(strategy, ReduceOp.SUM, gradients, columns)
            reduced |= step.rows
            for optimizer, pairs in self._reduced_updates(step, gradients, reduced):
                extended.apply_gradients(optimizer, pairs)
            if step.beside is not None:
                step.beside(None)
            if step.assigned:
                self.assign(step.assigned)
            return extended.read_applied(self._all)

        values: list[Any] = context.merge_call(merged, tuple(gradients.values()))
        return values

    def _reduced_updates(
        self, step: ModelStep, gradients: Mapping[str, Any], reduced: Mapping[str, Any]
    ) -> list[tuple[Optimizer, list[tuple[Any, Variable]]]]:
        """Push what an optimizer on this worker makes of reduced gradients; return what those of
        the servers have to apply.

        Args:
            step: The step.
            gradients: Gradients that the worker's optimizer takes, by name.
            reduced: Reduced gradients and rows, by name.
        """
        if step.update is None:
            return self.updates(reduced)
        self._push_made(step.update({name: reduced[name] for name in gradients}), step.kept)
        return self.updates({name: reduced[name] for name in step.rows})

    def reduce(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce gradients of a worker to one of all workers in sync: averaged, or added up.

        For what has to see them before :meth:`exchange`; outside of ``run``, on every worker.

        Args:
            gradients: Gradients by name: arrays or IndexedSlices.

        Raises:
            RuntimeError: With several replicas in this process, unless the store is ``of_worker``.
        """
        if len(self.strategy.extended.replica_devices) > 1 and not self._of_worker:
            raise _no_replica(self.strategy, "reduce")
        return sum_over_workers(self.strategy, gradients, {}, mean=self.mean)[0]

    @property
    def scale(self) -> float | None:
        """Factor of one replica's gradients before they are added up; None: 1."""
        replicas = self.strategy.extended.num_replicas_in_sync
        return 1.0 / replicas if self.mean and replicas > 1 else None


def _no_replica(strategy: Strategy, method: str) -> RuntimeError:
    """Make the error of a method that is called outside of ``run`` under several replicas."""
    return RuntimeError(
        f"{method} outside of strategy.run, under a strategy with "
        f"{len(strategy.extended.replica_devices)} replicas in this process: which of them the "
        "gradients are of is not known. Call it in strategy.run, or start a process for each "
        "replica"
    )
