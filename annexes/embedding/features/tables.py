"""Embeddings: the tables of some features, looked up in one exchange and trained in one push."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ....core.arrays.any_framework import to_host
from ....core.arrays.dtypes import Array
from ....core.arrays.indexed_slices import IndexedSlices
from ....core.errors import ConfigurationError, ShapeMismatchError
from ....distribute.base.contexts import get_replica_context, get_strategy
from ....distribute.base.values import on_every_replica
from ....distribute.embeddings import Bag
from ....distribute.optimizer import Optimizer
from ....distribute.strategies.strategy import Strategy
from ....distribute.variables.ps_table import PsTable
from ....distribute.variables.variable import Variable
from .config import FeatureConfig, TableConfig
from .inputs import FeatureBags, by_name, joined
from .look_ahead import MAX_BATCHES, Found, LookAhead
from .row_cache import RowCache, TrainedLookup, TrainedRows, cache_of, cache_samples, rows_of

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class _Table:
    config: TableConfig
    optimizer: Optimizer
    storage: Variable | PsTable
    cache: RowCache | None


class Embeddings:
    """The tables of some features. As ``tf.tpu.experimental.embedding.TPUEmbedding``.

    ::

        users = rw.embedding.TableConfig("users", dim=16)
        with strategy.scope():
            embeddings = rw.embedding.Embeddings(
                [rw.embedding.FeatureConfig("user", users)], rw.optimizers.Adagrad(0.1)
            )

        def step(batch):
            rows = embeddings.lookup({"user": batch["user"]})
            ...  # the model, and the gradient of each feature's rows
            rows.apply_gradients({"user": gradient})

    All features of a lookup travel in one request to each ps, equal keys once, and their gradients
    in the push of the step. Made in a strategy's scope, by all tasks alike.

    Args:
        features: Features with unique names.
        optimizer: Optimizer of tables that have none.

    Raises:
        ConfigurationError: Two features or tables of the same name, a table that grows without
            parameter servers, or one whose optimizer does not fit.
    """

    def __init__(
        self, features: Iterable[FeatureConfig], optimizer: Optimizer | None = None
    ) -> None:
        self._strategy: Any = get_strategy()
        self._features = by_name(list(features))
        configs = dict.fromkeys(feature.table for feature in self._features.values())
        self._tables = {config: self._make(config, optimizer) for config in configs}
        self._ahead: LookAhead[Any] | None = None
        self._show_caches()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out, for closures, what this task keeps, and looks up ahead."""
        tables = {config: replace(table, cache=None) for config, table in self._tables.items()}
        return self.__dict__ | {"_ahead": None, "_tables": tables}

    def _make(self, config: TableConfig, optimizer: Optimizer | None) -> _Table:
        table = self._made(config, optimizer)
        if (dtype := config.narrow_dtype) is not None:
            self._strategy.extended.tables.set_row_dtype(table.storage, dtype)
        return table

    def _made(self, config: TableConfig, optimizer: Optimizer | None) -> _Table:
        own = config.own_optimizer(optimizer)
        if config.vocabulary_size is None:
            tables, definition = self._strategy.extended.tables, config.definition(optimizer)
            storage = tables.create_table(definition)
            if config.staleness_writes:
                tables.delay_rows(storage, config.staleness_writes, config.cache_bytes)
            cache = cache_of(config, definition)
            if isinstance(cache, TrainedRows):
                tables.watch_pushes(storage, cache)
            return _Table(config, own, storage, cache)
        variable = Variable(
            initializer=config.first_values,
            shape=(config.vocabulary_size, config.dim),
            dtype=config.dtype,
            name=config.name,
        )
        return _Table(config, own, variable, cache_of(config, None))

    def _show_caches(self) -> None:
        caches = {t.config.name: t.cache for t in self._tables.values() if t.cache is not None}
        if caches:
            self._strategy.extended.tables.show_samples(lambda: cache_samples(caches))

    @property
    def strategy(self) -> Strategy:
        """The strategy in whose scope the tables were made."""
        strategy: Strategy = self._strategy
        return strategy

    @property
    def features(self) -> tuple[FeatureConfig, ...]:
        """The features, in order."""
        return tuple(self._features.values())

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables of tables that have a vocabulary_size, by name of the table."""
        return {
            table.config.name: table.storage
            for table in self._tables.values()
            if isinstance(table.storage, Variable)
        }

    @property
    def growing(self) -> tuple[str, ...]:
        """Names of the tables that grow."""
        tables = self._tables.values()
        return tuple(table.config.name for table in tables if isinstance(table.storage, PsTable))

    def flush(self) -> None:
        """Push the gradients that wait in this worker (``staleness_writes``)."""
        self._strategy.extended.tables.push_delayed()

    def lookup(self, ids: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> "Lookup":
        """Look up the rows of some features, combined for each example.

        A key that has no row reads as its row would begin (or as zeros: ``unknown``), and makes
        none. Rows are as they are now; of a table with ``staleness_reads`` they may lack what other
        workers have trained in at most so many lookups of this one.

        Args:
            ids: Ids by name of the feature: integers of shape ``(examples,)`` or ``(examples, n)``,
                :class:`Ragged`, lists of lists, or a sparse tensor.
            weights: Weights by name of the feature: floats of the same form, or a flat array beside
                :class:`Ragged` ids; features that are not there have weights of 1. An id of weight
                0 is left out.

        Returns:
            Rows by name of the feature: array of shape ``(examples, dim)``, or of shape
            ``(examples, max_sequence_length, dim)``.
            max_sequence_length, dim)``.

        Raises:
            KeyError: There is no such feature, or one has weights alone.
            TypeError: Ids are no integers.
            ValueError: Weights do not fit the ids.
            ShapeMismatchError: An id is not in ``[0, vocabulary_size)``.
        """
        bags = FeatureBags(self._features, ids, weights)
        uses = self._uses(bags)
        pulled = self._ahead.take(uses) if self._ahead is not None else None
        if pulled is None:
            pulled = self._pull([(use.table, use.ids) for use in uses])
        return Lookup(self._strategy, uses, bags.bags, bags.combined(pulled))

    def look_ahead(
        self,
        batches: Iterable[Batch],
        ids: Callable[[Batch], Any],
        *,
        count: int = 1,
    ) -> LookAhead[Batch]:
        """Give the batches, each of which has its rows looked up while steps before it compute.

        ::

            for batch in embeddings.look_ahead(dataset, lambda batch: batch["ids"]):
                strategy.run(step, args=(batch,))  # looks up batch["ids"]

        Rows that this worker trains meanwhile are looked up again when their step comes, so that a
        job of one worker computes the same as without. What others train between the two is not
        seen, nor is a row that the ps evicts. A lookup of other ids is made as ever.

        Args:
            batches: A dataset, distributed or not, or any other iterable. Their ids stay as they
                are until the batch is given.
            ids: Tells what a batch's step looks up: the argument ``ids`` of :meth:`lookup`, or a
                pair with ``weights``.
            count: Number of batches that are read and looked up ahead, at most 64. Their rows take
                memory.

        Returns:
            Iterator over the batches. An error of a batch's lookup is raised by the lookup of its
            step. Once another iterator is made, this one
            gives its batches alone, and their lookups are made as ever.

        Raises:
            ConfigurationError: A table has ``staleness_reads``, whose bound counts lookups in
                their order; or this task has several devices.
            ValueError: ``count`` is out of range.
        """
        if not 1 <= count <= MAX_BATCHES:
            raise ValueError(f"count must be between 1 and {MAX_BATCHES}, got {count!r}")
        for table in self._tables.values():
            if table.cache is not None:
                raise ConfigurationError(
                    f"table {table.config.name!r} has staleness_reads, and look_ahead looks its "
                    "rows up out of turn; leave one of them out",
                    table=table.config.name,
                )
        tables = self._strategy.extended.tables
        tables.begin_look_ahead(count)

        def uses_of(batch: Batch) -> list[_Use]:
            wanted = ids(batch)
            own, weights = wanted if isinstance(wanted, tuple) else (wanted, None)
            return self._uses(FeatureBags(self._features, own, weights))

        def look_up(wanted: Sequence[tuple[_Table, Array]]) -> Callable[[], Found]:
            asked = [(table.storage, ids) for table, ids in wanted]
            rows: Callable[[], Found] = tables.look_up_ahead(asked)
            return rows

        if self._ahead is not None:
            self._ahead.stop()
        ahead = self._ahead = LookAhead(batches, uses_of, look_up, count)
        return ahead

    def _uses(self, bags: FeatureBags) -> "list[_Use]":
        """Find the tables in which the ids of some features are."""
        return [_Use(self._tables[use.table], use.features, use.ids) for use in bags.uses]

    def _pull(self, wanted: Sequence[tuple[_Table, Array]]) -> list[tuple[Array, Array | None]]:
        """Pull the distinct rows of each table; returns also which of them belongs to each id."""
        if not wanted:
            return []
        begun = [None if table.cache is None else table.cache.begin(i) for table, i in wanted]
        pairs = list(zip(wanted, begun, strict=True))
        pulled, states = self._strategy.extended.tables.lookup_states(
            [(t.storage, ids if cached is None else cached.wanted) for (t, ids), cached in pairs],
            [
                (t.storage, cached.wanted_states)
                for (t, _), cached in pairs
                if isinstance(cached, TrainedLookup)
            ],
        )
        whole = iter(states)
        rows_of_tables: Found = []
        for ((table, _), cached), (rows, inverse) in zip(pairs, pulled, strict=True):
            if cached is None or table.cache is None:
                rows_of_tables.append((rows, inverse))
                continue
            own = rows_of(rows, inverse)
            if isinstance(cached, TrainedLookup) and isinstance(table.cache, TrainedRows):
                every = table.cache.finish_states(cached, own, rows_of(*next(whole)))
            else:
                every = table.cache.finish(cached, own)
            rows_of_tables.append((every, cached.inverse))
        return rows_of_tables


@dataclass(frozen=True, slots=True)
class _Use:
    """A table in a lookup, its features, and the ids of all of them."""

    table: _Table
    features: list[str]
    ids: Array


class Lookup(Mapping[str, Array]):
    """Combined rows by feature, and the way in which their gradients go back to the tables."""

    def __init__(
        self,
        strategy: Strategy,
        uses: Sequence[_Use],
        bags: Mapping[str, Bag],
        values: Mapping[str, Array],
    ) -> None:
        self._strategy = strategy
        self._uses = uses
        self._bags = bags
        self._values = values

    @property
    def strategy(self) -> Strategy:
        """The strategy of the tables."""
        return self._strategy

    def __getitem__(self, feature: str) -> Array:
        return self._values[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """Train the tables: summed over the replicas in sync, with the push of the step.

        Args:
            gradients: Gradients by name of the feature: the gradient of what the lookup gave, of
                its shape. Features that are not there, or None, give none.

        Raises:
            KeyError: A feature was not looked up.
            ShapeMismatchError: A gradient has another shape.
        """
        apply_rows(self._strategy, self.row_gradients(gradients))

    def row_gradients(self, gradients: Mapping[str, Any]) -> list[tuple[_Table, IndexedSlices]]:
        """Compute the gradient of the rows of each table that has one.

        Args:
            gradients: Gradients by name of the feature, as :meth:`apply_gradients` takes them.

        Raises:
            KeyError: A feature was not looked up.
            ShapeMismatchError: A gradient has another shape.
        """
        present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        if unknown := present.keys() - self._bags.keys():
            raise KeyError(f"feature {min(unknown)!r} was not looked up")
        gradients_by_table: list[tuple[_Table, IndexedSlices]] = []
        for use in self._uses:
            names = [name for name in use.features if name in present]
            if not names:
                continue
            # Of all features of the table these are the ids of the lookup: they are known.
            ids = use.ids if names == use.features else joined([self._bags[n].ids for n in names])
            rows = IndexedSlices(joined([self._gradient(n, present[n]) for n in names]), ids)
            gradients_by_table.append((use.table, rows))
        return gradients_by_table

    def _gradient(self, feature: str, combined: Any) -> Array:
        """Compute the gradient of each id's row."""
        gradient, shape = to_host(combined), self._values[feature].shape
        if gradient.shape != shape:
            raise ShapeMismatchError(
                f"the gradient of feature {feature!r} has shape {gradient.shape}, its rows have "
                f"{shape}",
                variable=feature,
                pushed=gradient.shape,
                expected=shape,
            )
        return self._bags[feature].spread(gradient.reshape(-1, shape[-1]))


def apply_rows(strategy: Strategy, gradients: Iterable[tuple[_Table, IndexedSlices]]) -> None:
    """Train tables by the gradients of their rows, each table by its optimizer."""
    growing: list[tuple[PsTable, IndexedSlices]] = []
    arrays: dict[Optimizer, list[tuple[IndexedSlices, Variable]]] = {}
    for table, rows in gradients:
        if isinstance(table.storage, PsTable):
            growing.append((table.storage, rows))
        else:
            arrays.setdefault(table.optimizer, []).append((rows, table.storage))
    if growing:
        _push(strategy, growing)
    for optimizer, pairs in arrays.items():
        optimizer.apply_gradients(pairs)


def sum_rows(parts: Sequence[IndexedSlices]) -> IndexedSlices:
    """Sum gradients of one table's rows to one."""
    values, indices = [part.values for part in parts], [part.indices for part in parts]
    return IndexedSlices(joined(values), joined(indices))


def _push(strategy: Strategy, growing: list[tuple[PsTable, IndexedSlices]]) -> None:
    context = get_replica_context()
    if (
        context is None
        or context.strategy is not strategy
        or strategy.extended.num_replicas_in_sync == 1
    ):
        strategy.extended.tables.push_rows(growing)
        return
    context.merge_call(_push_of_replicas, (_ReplicaGradients(growing),))


@dataclass(frozen=True, slots=True)
class _ReplicaGradients:
    """The gradients of one replica, wrapped so that they are not taken apart as a structure."""

    growing: list[tuple[PsTable, IndexedSlices]]


def _push_of_replicas(strategy: Strategy, replicas: Any) -> None:
    by_table: dict[PsTable, list[IndexedSlices]] = {}
    for part in on_every_replica(replicas, 1).values:
        for table, rows in part.growing:
            by_table.setdefault(table, []).append(rows)
    strategy.extended.tables.push_rows(
        [(table, sum_rows(rows)) for table, rows in by_table.items()]
    )


# -- Gradients of lookups that wait for the step that applies them, each table by one update ---

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
