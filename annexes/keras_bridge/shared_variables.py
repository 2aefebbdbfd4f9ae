"""Variables of Keras that a strategy shares: each once, whatever models and optimizers hold it.

A layer may be in several models (the discriminator of a GAN, a backbone under two heads), and each
of them reads and trains the same variable. So what is known of a variable is kept by the variable
and not by the model: its name, where its value is, and the value that came last. A step of one
model is then no change by hand to the other.
"""

import weakref
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ...training.extras import require
from .held_weights import HeldWeights

if TYPE_CHECKING:
    from .distributed_embedding import DistributedEmbedding, FeatureReader
    from .embedding import Embedding, RowReader

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
