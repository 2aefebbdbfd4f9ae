"""Variables of Keras that a strategy shares: each once, whatever models and optimizers hold it.

A layer may be in several models (the discriminator of a GAN, a backbone under two heads), and each
of them reads and trains the same variable. So what is known of a variable is kept by the variable
and not by the model: its name, where its value is, and the value that came last. A step of one
model is then no change by hand to the other.
"""

import logging
import weakref
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.arrays.dtypes import Array
from ...distribute.runtime import ClusterRuntime
from ...distribute.strategies.parameter_server import ParameterServerExtended
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ...training.extras import require

if TYPE_CHECKING:
    from .distributed_embedding import DistributedEmbedding, FeatureReader
    from .embedding import Embedding, RowReader

log = logging.getLogger(__name__)

keras: Any = require("keras", "keras")

_ATTRIBUTE = "_variables_of_keras"
_strategies: "weakref.WeakSet[Strategy]" = weakref.WeakSet()


class SharedVariables:
    """The variables of Keras under one strategy; :func:`shared_variables` has it.

    Attributes:
        values: Values that came last, by name.
        given: Values that the program was given last, by name: in variables, or on JAX as the
            values that a loop goes on with. Those that came last may be newer.
        marks: Marks by which the framework's steps know what they loaded last, by name.
        assignments: Number of times that a variable was assigned by others, by its id; TensorFlow's
            steps count.
        optimizers: Made in a scope, and of no compiled model.
        is_sharing: Whether a model's variables are just being made: scopes that are left meanwhile
            are not the program's.
        held: Values that the chief's program has set since its last step.
        applied: Values that were applied since the last step of this worker began, by id of the
            variable.
    """

    def __init__(self) -> None:
        self.values: dict[str, Array] = {}
        self.given: dict[str, Array] = {}
        self.marks: dict[str, Any] = {}
        self.assignments: dict[int, int] = {}
        self.applied: set[int] = set()
        self.is_sharing = False
        self._is_trained = False
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._models: list[weakref.ref[Any]] = []  # in the order of the program
        self._names: dict[int, str] = {}
        self._variables: dict[str, Variable] = {}
        self.held = HeldWeights(self._variables)
        self._trained_by: dict[str, weakref.ref[Any]] = {}
        self._tables: dict[int, tuple[Variable, RowReader]] = {}
        self._features: dict[int, FeatureReader] = {}

    def name(self, variable: Any, wished: str, model: str, taken: Container[str]) -> str:
        """Choose the name of a variable: the one that it has, or a new one that no other has.

        Args:
            variable: Variable of Keras.
            wished: Name to have, if it is free: its path, with the prefix of its model's weights.
            model: Model's name, put first if another variable has that name, as in a clone.
            taken: Names that other variables of the model have been given.
        """
        if id(variable) in self._names:
            return self._names[id(variable)]
        name, number = wished, 0
        while name in self._variables or name in taken:
            name = f"{model}_{number}/{wished}" if number else f"{model}/{wished}"
            number += 1
        return name

    def leaf(self, name: str, first: Array) -> Variable | Array:
        """Choose what a store is made of: the variable that there is, or the first value of a new
        one.
        """
        return self._variables.get(name, first)

    def add(self, variables: Mapping[str, Any], shared: Mapping[str, Variable]) -> None:
        """Know these from now on, as long as the program has them.

        Args:
            variables: Variables of Keras, by name.
            shared: Variables of the strategy, by name.
        """
        for name, variable in variables.items():
            if id(variable) not in self._names:
                self._names[id(variable)] = name
                self._variables[name] = shared[name]
                weakref.finalize(variable, self._forget, id(variable)).atexit = False

    def _forget(self, key: int) -> None:
        # Not its name: the strategy's variable is there as long as the job.
        name = self._names.pop(key)
        self.assignments.pop(key, None)
        for values in (self.values, self.given, self.marks, self._trained_by):
            values.pop(name, None)

    def add_model(self, model: Any) -> None:
        """Know a model that was made in a scope."""
        self._models = [reference for reference in self._models if reference() is not None]
        self._models.append(weakref.ref(model))

    def living_models(self) -> list[Any]:
        """List the models of the scopes that the program still has, in its order."""
        return [model for reference in self._models if (model := reference()) is not None]

    def new_models(self) -> list[Any]:
        """List the models of the scopes that are built and not shared, in the program's order."""
        return [
            model
            for model in self.living_models()
            if model.built and any(id(v) not in self._names for v in model.trainable_variables)
        ]

    def models_with(self, variables: Iterable[Any]) -> list[Any]:
        """List the models of the scopes that hold one of these."""
        ids = set(map(id, variables))
        return [m for m in self.living_models() if any(id(v) in ids for v in m.weights)]

    def take(self, optimizer: Any, variables: Iterable[Any]) -> None:
        """Note which optimizer trains these on the servers, which keep one state of each."""
        reference = weakref.ref(optimizer)
        self._trained_by |= {self._names[id(v)]: reference for v in variables}

    def first_step_of_another(self, step: int) -> int:
        """Find the step at which a model begins to train; 0 for the first, which a job may
        resume.
        """
        before, self._is_trained = self._is_trained, True
        return step if before else 0

    def trained_by_another(self, optimizer: Any, variables: Iterable[Any]) -> str | None:
        """Find the path of the first of these that another one trains there; None: none of them."""
        for variable in variables:
            other = self._trained_by.get(self._names.get(id(variable), ""))
            if other is not None and other() is not optimizer:
                return str(variable.path)
        return None

    def table(self, layer: "Embedding") -> "tuple[Variable, RowReader] | None":
        """Find the table of an embedding, and how its rows are read; None: it has none yet."""
        return self._tables.get(id(layer))

    def add_table(self, layer: "Embedding", table: Variable, reader: "RowReader") -> None:
        """Know it from now on."""
        self._tables[id(layer)] = (table, reader)
        weakref.finalize(layer, self._tables.pop, id(layer)).atexit = False

    def features(self, layer: "DistributedEmbedding") -> "FeatureReader | None":
        """Find the reader of a layer's features; None: it has no tables yet."""
        return self._features.get(id(layer))

    def add_features(self, layer: "DistributedEmbedding", reader: "FeatureReader") -> None:
        """Know it from now on."""
        self._features[id(layer)] = reader
        weakref.finalize(layer, self._features.pop, id(layer)).atexit = False


def strategies_in_use() -> list[Strategy]:
    """List the strategies that share something of Keras, or in whose scopes models were made."""
    return list(_strategies)


def models_of_scopes() -> list[tuple[Strategy, Any]]:
    """List the models that were made in scopes, each with its strategy."""
    return [
        (strategy, m)
        for strategy in _strategies
        for m in shared_variables(strategy).living_models()
    ]


def shared_variables(strategy: Strategy) -> SharedVariables:
    """Find or make what a strategy shares of Keras."""
    shared: SharedVariables | None = getattr(strategy, _ATTRIBUTE, None)
    if shared is None:
        shared = SharedVariables()
        setattr(strategy, _ATTRIBUTE, shared)
        _strategies.add(strategy)
        if keras.backend.backend() == "torch":  # its replicas have one ``grad`` for each weight
            strategy.extended.run_in_turns()
    return shared


def share_anew(strategy: Strategy) -> None:
    """Forget what a strategy shares: an Estimator makes all variables again for each training."""
    setattr(strategy, _ATTRIBUTE, SharedVariables())
    _strategies.add(strategy)


# -- Weights that the chief's program has set since its last step, where others train on
# meanwhile.
# `EarlyStopping(restore_best_weights=True)` ends `fit` with `set_weights`, and a program may load
# the best file after it. Asynchronous workers go on pushing to the same variables, so what the
# servers have soon is something else. On the chief such weights therefore stay until it makes a
# step with them: it evaluates, saves and exports them, and the servers are given them once more
# when its next `fit` begins and before the job's last checkpoint (ADR 0080).


class HeldWeights:
    """Values that the chief's program has set, of all models of a strategy.

    Args:
        variables: All variables of the strategy that models have, by name.

    Attributes:
        others_were_told: Whether the other workers were told to end their training.
    """

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self._values: dict[str, Array] = {}
        self._runtime: ClusterRuntime | None = None
        self._step = 0
        self.others_were_told = False

    def hold(self, values: Mapping[str, Array], runtime: ClusterRuntime) -> None:
        """Keep values, which the servers have been given once.

        Args:
            values: Values by name; no memory of the program's.
            runtime: Runtime of the job whose last checkpoint is to have them.
        """
        self._values.update(values)
        self.others_were_told = False
        self._step = runtime.global_step
        if self._runtime is None:
            self._runtime = runtime
            runtime.before_last_save.append(self._give_last)

    def among(self, names: Iterable[str]) -> dict[str, Array]:
        """Select the values of these variables that are held, by name."""
        return {name: self._values[name] for name in names if name in self._values}

    def release(self, names: Iterable[str]) -> None:
        """Let variables go on as the servers have them."""
        if self._values:
            for name in names:
                self._values.pop(name, None)

    def give_again(self, names: Iterable[str]) -> None:
        """Have the servers take those of some variables once more."""
        for name, value in self.among(names).items():
            self._variables[name].assign(value)

    def _give_last(self) -> None:
        if not self._values or self._runtime is None:
            return
        self.give_again(self._values)
        others_steps = self._runtime.global_step - self._step
        if others_steps > 0:
            log.log(
                logging.INFO if self.others_were_told else logging.WARNING,
                "the last checkpoint has the weights that the chief's program has set after its "
                "last step; the %d steps that other workers made meanwhile are not in them",
                others_steps,
            )


def runtime_of_chief(strategy: Strategy) -> ClusterRuntime | None:
    """Find the runtime of the chief of other workers that do not wait for it; None: this is
    another.
    """
    extended = strategy.extended
    if not (isinstance(extended, ParameterServerExtended) and extended.should_checkpoint):
        return None
    return extended.runtime if extended.num_input_pipelines > 1 else None
