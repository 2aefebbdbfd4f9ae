"""The weights of a Keras model that all workers share.

What is the same on every framework is here: names, the store, where the optimizer runs, and whose
values count. How a step is made to hand its gradients out is ``jax_steps``, ``torch_steps`` and
``tensorflow_steps``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import CollectiveMismatchError, ConfigurationError
from ...distribute.base.contexts import is_running
from ...distribute.optimizer import Optimizer
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.holders import holders_of
from ...distribute.variables.variable import Variable
from ...training.array_store import ModelStep, Update
from ...training.in_sync import workers_in_sync
from ...training.kept_state import KeptState
from ...training.own_optimizer import Deltas
from ...training.program_changes import ProgramChanges
from ...training.shared_model import SharedModel
from ...training.update_count import UpdateCount
from .averages import decays_of, moved_and_assigned, state_of
from .distributed_embedding import DistributedEmbedding, FeatureReader, collections_of
from .embedding import Embedding, RowReader, embeddings_of
from .framework_steps import steps_module
from .frameworks import keras
from .iterations import Iterations
from .optimizer import (
    KerasTrainer,
    OptimizerTrainer,
    StateOfOptimizer,
    require_fresh,
    settings_of,
)
from .replicas import Placement
from .shared_variables import SharedVariables, runtime_of_chief, shared_variables
from .state_warnings import StateWarnings
from .steps import Steps
from .worker_seeds import give_own_seeds

_UNKEPT = (
    "Write it as a constraint, which an optimizer of Keras keeps in every step "
    "(kernel_constraint=... of the layer); have the chief alone change weights that no optimizer "
    "trains (if strategy.is_chief: ...); or train in sync"
)
"""Remedy for a program whose changes are not kept."""


class SharedWeights:
    """The weights of a model under a strategy; ``rw.training.keras.distribute`` makes it.

    Attributes:
        model: Model whose weights they are.
        placement: Place in which the replicas of this process compute; None: there is one.
        store: The weights by their paths, such as ``dense/kernel``.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
        variables: Variables of Keras, by name.
        averages: Weight of a batch in each moving average among them, by name.
        shared: Knowledge of the variables, whatever models hold them.
        is_chief: Whether this worker writes what only one of all workers has to.
        changes: Object that gives the program's changes to all workers.
        can_assign: Whether this worker's changes by hand count: the chief's, and in sync, where
            each worker has a copy, those that all make alike.
        were_set: Whether the program has set them since the last step, be it to what they were.
        steps: Number of training steps that this worker has made.
        began_elsewhere: Whether the job had other values than this worker's model: the chief's, or
            a checkpoint's.
        readers: Readers of the embedding tables, by name.
        warnings: Warnings to the program about its optimizer's state on the servers.
        kept: State of an optimizer on this worker, as checkpoints have it; None: there is none.
    """

    def __init__(
        self,
        model: Any,
        strategy: Strategy,
        *,
        deltas: Deltas,
        mean: bool,
        name: str,
        placement: Placement | None = None,
        steps: Callable[["SharedWeights"], Steps] | None = None,
        trainer: Callable[
            [Any, Sequence[Any], Deltas, SharedVariables], OptimizerTrainer
        ] = KerasTrainer,
    ) -> None:
        self.model = model
        self.placement: Any = placement
        self.is_chief = bool(strategy.extended.should_checkpoint)
        self.steps = 0
        self._prefix = f"{name}/" if name else ""
        _require_weights(model)
        give_own_seeds(model._flatten_layers(), strategy)
        self.shared = shared_variables(strategy)
        self.optimizer = model.optimizer
        self.trainer: OptimizerTrainer | None = None  # of weights that are only shared
        if self.optimizer is not None:
            trained = model.trainable_variables
            self.trainer = trainer(self.optimizer, trained, deltas, self.shared)
        self.worker_reason = None if self.trainer is None else self.trainer.worker_reason
        server_state = "" if self.trainer is None else self.trainer.server_state
        self.warnings = StateWarnings(model.name, server_state, is_chief=self.is_chief)
        count = _count_of_schedule(self.trainer, model, self._prefix, strategy)
        embeddings = embeddings_of(model)
        collections = collections_of(model)
        self._gradient_ways = {id(layer._rows) for layer in embeddings}
        self._gradient_ways |= {id(layer._rows) for layer in collections}
        if self.trainer is None:
            embeddings, collections = [], []
        decays = decays_of(model)
        self.variables = self._shared_variables(decays, in_sync=workers_in_sync(strategy) > 1)
        self._names = {id(variable): name for name, variable in self.variables.items()}
        self.averages = {
            name: decays[id(variable)]
            for name, variable in self.variables.items()
            if id(variable) in decays
        }
        self.backend: Steps = (steps or steps_module().STEPS)(self)
        readers = [self._table(layer, strategy) for layer in embeddings]
        self.readers = {table.name: reader for table, reader in readers}
        self._features = [self._feature_reader(layer, strategy) for layer in collections]
        # Which only an optimizer that takes it over goes on with.
        stays = deltas == "forbid" or self.readers or self._features
        self._state_to_leave = "" if stays else server_state
        self._own_state: StateOfOptimizer | None = None
        if self.trainer is not None and self.worker_reason is not None:
            self._own_state = self.trainer.own_state(self.backend.array)
        kept = None if self._own_state is None else self._own_state.kept(strategy, name)
        tables = [table for table, _ in readers]
        optimizers = self._optimizers(embeddings, tables)
        self._model = self._new_model(strategy, optimizers, tables, kept, count, mean=mean)
        self.store, self.kept = self._model.store, kept
        self.changes = ProgramChanges(self.store, example="clipping does", remedy=_UNKEPT)
        self.can_assign = self.changes.count
        self.were_set = False
        self._runtime_of_chief = runtime_of_chief(strategy)
        trained = [self.store.variables[self._names[id(v)]] for v in self._trained()]
        copies = [copies[0] for copies in map(holders_of, trained) if copies]
        self._iterations = Iterations(self.shared, self.store, count, copies)
        for layer, (_, reader) in zip(embeddings, readers, strict=True):
            layer.read_from(reader)
        for collection, features in zip(collections, self._features, strict=True):
            collection.read_from(features)
        if self.trainer is not None and self.worker_reason is None:
            self.shared.take(self.optimizer, self._trained())
        self._begin()

    def _new_model(
        self,
        strategy: Strategy,
        optimizers: Mapping[str, Optimizer],
        tables: Sequence[Variable],
        kept: KeptState | None,
        count: UpdateCount | None,
        *,
        mean: bool,
    ) -> SharedModel:
        """Weights, tables of embeddings, and a state on this worker, as variables of the job."""
        self.shared.is_sharing = True
        try:
            first = {
                name: self.shared.leaf(name, self.backend.array(variable))
                for name, variable in self.variables.items()
            }
            model = SharedModel(
                first,
                optimizers,
                strategy,
                kept=kept,
                count=count,
                mean=mean,
                of_worker=True,
                tables={table.name: table for table in tables},
            )
            self.shared.add(self.variables, model.store.variables)
        finally:
            self.shared.is_sharing = False
        return model

    def _begin(self) -> None:
        """Load what the job has of the weights, and of the state of an optimizer on this worker."""
        # The batch of a first step has moved averages already: it pushes what became of them.
        moved = self.shared.values.keys() & set(self.pushed_state())
        # What the program has loaded into weights since a scope or another model shared them.
        changed = self.backend.changed()
        self.changes.give({name: changed[name] for name in changed.keys() - moved})
        values = self._model.refresh()
        self.began_elsewhere = not self._has(values)
        self.load({name: value for name, value in values.items() if name not in moved})

    def _table(self, layer: Embedding, strategy: Strategy) -> tuple[Variable, RowReader]:
        """Find the table of the layer, which another model may have made already."""
        table_and_reader = self.shared.table(layer)
        if table_and_reader is None:
            with strategy.scope():
                table = layer.make_table(self._prefix)
            table_and_reader = table, self.backend.new_reader(layer, table)
            self.shared.add_table(layer, *table_and_reader)
        self.backend.use_reader(table_and_reader[1])
        return table_and_reader

    def _feature_reader(self, layer: DistributedEmbedding, strategy: Strategy) -> FeatureReader:
        """Find the reader of the layer, whose tables another model may have made already."""
        reader = self.shared.features(layer)
        if reader is None:
            _require_one_replica(layer, strategy)
            rules = {} if self.trainer is None else self.trainer.rules({"": layer._rows})
            with strategy.scope():
                embeddings = layer.make_tables(rules.get(""))
            reader = self.backend.new_feature_reader(layer, embeddings)
            self.shared.add_features(layer, reader)
        self.backend.use_reader(reader)
        return reader

    def _has(self, values: Mapping[str, Array]) -> bool:
        """Return whether the weights to train have these values."""
        names = ((v, self._names[id(v)]) for v in self._trained() if id(v) in self._names)
        return all(np.array_equal(self.backend.array(v), values[name]) for v, name in names)

    def _trained(self) -> list[Any]:
        """List the shared variables that the model trains."""
        return [v for v in self.model.trainable_variables if not self.is_gradient_way(v)]

    def _optimizers(
        self, embeddings: Sequence[Embedding], tables: Sequence[Variable]
    ) -> dict[str, Optimizer]:
        if self.trainer is None:
            return {}
        optimizers = self.trainer.rules(self.variables)
        for layer, table in zip(embeddings, tables, strict=True):
            rule = layer.optimizer or self.trainer.rules({"": layer._rows}).get("")
            if rule is None:
                kind = type(self.model.optimizer).__name__
                raise ConfigurationError(
                    f"{kind} {self.worker_reason}, so it runs on this worker, and cannot train "
                    f"{table.name!r}, of which no worker has more than some rows; give the "
                    "Embedding an optimizer of rw.optimizers",
                    variable=table.name,
                    optimizer=kind,
                )
            optimizers[table.name] = rule
        return optimizers

    def _shared_variables(self, decays: Mapping[int, float], *, in_sync: bool) -> dict[str, Any]:
        """Find the floating-point weights by name; in sync those that are equal on all workers.

        Every worker has its own seed generators and counters.
        """
        variables: dict[str, Any] = {}
        trained = {id(variable) for variable in self.model.trainable_variables}
        for variable in self.model.weights:
            if in_sync and id(variable) not in trained and id(variable) not in decays:
                continue
            if not keras.backend.is_float_dtype(variable.dtype) or self.is_gradient_way(variable):
                continue
            path = self._prefix + variable.path
            variables[self.shared.name(variable, path, self.model.name, variables)] = variable
        return variables

    # -- values ------------------------------------------------------------------------------

    def pull(self) -> Mapping[str, Array]:
        """Pull the values of now, to the host."""
        return self._model.pull()

    @property
    def iterations(self) -> int:
        """Updates of the optimizer so far, as far as this worker knows."""
        return self._iterations.now

    def go_on_from(self, iterations: int) -> None:
        """Count on, as the schedule does, from so many updates, of which a loaded file tells.

        The program has not trained yet. An optimizer on this worker has all of its state from the
        file.
        """
        if not isinstance(self.trainer, KerasTrainer) or self.worker_reason is not None:
            return
        if not self.iterations:
            self.warnings.began_anew(self.optimizer, iterations)
        before = self._iterations.go_on_from(iterations, counts=self.can_assign)
        self.trainer.follow_schedule_from(before)

    def refresh(self) -> None:
        """Load the weights as they are now, with what other workers have pushed.

        What was loaded or assigned on the chief since (``load_weights``) is given to all workers
        first; on other workers the chief's takes its place.
        """
        self.backend.sync()  # a callback may call this within an epoch
        # Also values that are those of now may be the program's last word.
        is_last_word = self.were_set and self.steps and self._runtime_of_chief is not None
        changed = self._copies() if is_last_word else self.backend.changed()
        if self.changes.give(changed) and self.steps:
            self._hold(changed)
        self.were_set = False
        held = self.shared.held.among(self.variables)
        self.load(held if len(held) == len(self.variables) else {**self._model.refresh(), **held})

    def _hold(self, changed: Mapping[str, Array]) -> None:
        """Keep the weights that the chief has, if its program has set some that are trained."""
        chief = self._runtime_of_chief
        if chief is not None and any(self.name_of(v) in changed for v in self._trained()):
            self.shared.held.hold(self._copies(), chief)

    def _copies(self) -> dict[str, Array]:
        return {name: np.array(self.backend.array(v)) for name, v in self.variables.items()}

    @property
    def holds(self) -> bool:
        """Whether this chief goes on with weights that its program has set since its last step."""
        return bool(self.shared.held.among(self.variables))

    def load(self, values: Mapping[str, Array]) -> None:
        """Have these values in the variables of these names."""
        self.shared.values.update(values)
        self.backend.load({name: self.variables[name] for name in values}, values)

    # -- steps -------------------------------------------------------------------------------

    def trained_names(self) -> list[str]:
        """List the names of the weights that are trained, in Keras' order.

        Raises:
            ConfigurationError: One was not there when the model was distributed.
        """
        try:
            return [self._names[id(v)] for v in self._trained()]
        except KeyError:
            raise ConfigurationError(
                f"{self.model.name!r} has a weight to train that it had not when it was "
                "distributed; build all of it before"
            ) from None

    def pushed_state(self) -> list[str]:
        """List the names of those that no gradient changes, but steps do."""
        return [self._names[id(v)] for v in state_of(self.model) if id(v) in self._names]

    def own_state(self) -> list[Any]:
        """List the variables of Keras' that steps change and this worker does not share."""
        return [v for v in state_of(self.model) if id(v) not in self._names]

    def name_of(self, variable: Any) -> str | None:
        """Find the name of a variable of Keras; None: it is not shared."""
        return self._names.get(id(variable))

    def is_gradient_way(self, variable: Any) -> bool:
        """Return whether a variable is the weight of an embedding, which stands for the rows of a
        batch.
        """
        return id(variable) in self._gradient_ways

    def can_take_optimizer(self) -> bool:
        """Return whether the optimizer that the model was compiled with last goes on with this
        state.

        Its rate may be another number, if it is one. It must train no weight that is new, and be
        the one before it, if that has a state on the servers which may stay there unused.
        """
        settings = {} if self.trainer is None else self.trainer.settings
        if self.steps and self._state_to_leave and self.model.optimizer is not self.optimizer:
            return False
        return settings_of(self.model.optimizer) == settings and all(
            id(variable) in self._names for variable in self._trained()
        )

    def take_optimizer(self) -> None:
        """Train with the optimizer that the model was compiled with last.

        The servers go on with the state of the one before it, and a warning says so.
        """
        optimizer = self.model.optimizer
        if self.worker_reason is None and not self.steps:
            require_fresh(optimizer)
        if optimizer is not self.optimizer:
            self.warnings.compiled_again(self.optimizer, self.steps)
        self.optimizer = optimizer
        if self._own_state is not None:
            self._own_state.optimizer = optimizer

    def exchange(
        self,
        gradients: Mapping[str, Any],
        *,
        update: Update | None = None,
        changed: Mapping[str, Array] | None = None,
        state: Callable[[], Sequence[Any]] | None = None,
        counts: Callable[[], None] | None = None,
    ) -> Mapping[str, Array]:
        """Make a step: push, and return the values of all shared weights that come back.

        Args:
            gradients: Gradients by name; of weights that have none, none.
            update: Optimizer of this worker; None: the servers'.
            changed: Values that the step has made of :meth:`pushed_state`, by name: averages go on
                from there, the rest is overwritten.
            state: Returns what the optimizer's variables are after ``update``; None: what they
                have.
            counts: Is called after ``update``, unless what it made is refused for NaN or infinity.
        """
        moved, assigned = moved_and_assigned(changed or {}, self.shared.values, self.averages)

        def kept() -> Mapping[str, Any]:
            if counts is not None:
                counts()
            if self.kept is not None:
                self.kept.steps += 1
            return self._pushed(state)

        self.steps += 1
        self.were_set = False
        self.shared.held.release(self.variables)
        self._iterations.begin_step()
        try:
            arrived = self._model.exchange(
                ModelStep(
                    gradients,
                    update=update,
                    assigned=assigned or None,
                    averages=moved,
                    kept=kept,
                    rows={n: g for n, reader in self.readers.items() if (g := reader.take())},
                    beside=self._push_features if any(map(_waits, self._features)) else None,
                ),
                in_run=is_running(self.store.strategy),
            )
        except CollectiveMismatchError as error:
            raise CollectiveMismatchError(
                f"{error}. In sync all make as many steps in an epoch: give each worker as many "
                "examples, or steps_per_epoch, and repeat what is shorter"
            ) from error
        self.shared.values.update(arrived)
        return arrived

    def _push_features(self, scale: float | None) -> None:
        """Train the tables of this model's features."""
        for reader in self._features:
            reader.waiting.apply(scale)

    def _pushed(self, state: Callable[[], Sequence[Any]] | None) -> Mapping[str, Any]:
        """Collect what is kept of the state of an optimizer on this worker."""
        own = self._own_state
        if own is None or self.kept is None:
            return {}
        return self.kept.pushed(partial(own.now, state))

    def values_now(self, state: Callable[[], Sequence[Any]]) -> Mapping[str, Array]:
        """Weights, and the state of an optimizer on this worker, as the store is to have them.

        Args:
            state: Returns the values of the optimizer's variables.
        """
        weights = {name: self.shared.values[name] for name in self.variables}
        return {**weights, **self._pushed(state)}

    def set_rate(self, rate: float) -> None:
        """Let the rate that a callback or the program has set count from this step on."""
        if isinstance(self.trainer, KerasTrainer):
            self.trainer.set_rate(rate)


def _count_of_schedule(
    trainer: OptimizerTrainer | None, model: Any, prefix: str, strategy: Strategy
) -> UpdateCount | None:
    """Find what a schedule on the servers goes by, where the strategy counts no updates of it."""
    if not isinstance(trainer, KerasTrainer):
        return None
    return trainer.count_of_schedule(f"{prefix}{model.name}/{model.optimizer.name}/", strategy)


def _waits(reader: FeatureReader) -> bool:
    """Return whether there are gradients for the end of a step."""
    return len(reader.waiting) > 0


def _require_one_replica(layer: DistributedEmbedding, strategy: Strategy) -> None:
    replicas = len(strategy.extended.replica_devices)
    if replicas > 1 and workers_in_sync(strategy) > 1:
        raise ConfigurationError(
            f"{layer.name!r} is trained by workers in sync that have {replicas} replicas each; "
            "start a process for each replica"
        )


def has_its_weights(layer: Any) -> bool:
    """Return whether a layer is built, or has nothing to build, as the table in a
    TextVectorization.
    """
    return bool(layer.built) or type(layer).build is keras.Layer.build


def _require_weights(model: Any) -> None:
    if not model.built or not all(map(has_its_weights, model._flatten_layers())):
        raise ConfigurationError(
            f"{model.name!r} is not built, so it has no weights to share; give it a keras.Input, "
            "or call it on one batch before it is distributed"
        )
    if not model.trainable_variables:
        raise ConfigurationError(f"{model.name!r} has no weight to train")
