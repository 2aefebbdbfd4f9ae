"""Things that a model_fn makes when it is called first, and finds again when it is called for the
next batch.

A graph was built once. Here model_fn runs for every batch, so what it makes is reused by name, as
``tf.compat.v1.get_variable`` does under ``AUTO_REUSE``: the second ``rw.Variable(…, name="w")`` of
a training is the first one. :func:`once` does the same for any other object: a module of PyTorch, a
tree of JAX, a model of Keras.

All that bridges share are variables too (``ArrayStore``), so one place gives them the values of a
checkpoint: where they are made (``first_values.py``).
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from ...core.checkpoint import CheckpointReader
from ...core.errors import CheckpointError, ConfigurationError
from ...distribute.base.contexts import get_replica_context
from ...distribute.base.values import DistributedValues
from ...distribute.strategies.default import the_default_strategy
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable, variable_creator_scope
from .first_values import FirstValues

_T = TypeVar("_T")


class Registry:
    """The variables of one model directory under one strategy, over several calls of an Estimator.

    Attributes:
        variables: Variables by name.
        live_step: The global step of the training whose values they have; None: of none.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.live_step: int | None = None


_registries: "weakref.WeakKeyDictionary[Strategy, dict[str, Registry]]" = (
    weakref.WeakKeyDictionary()
)


def registry_of(strategy: Strategy, model_dir: str) -> Registry:
    """Find what was made under a strategy for a model directory; the default strategy keeps
    nothing.
    """
    if strategy is the_default_strategy():
        return Registry()
    return _registries.setdefault(strategy, {}).setdefault(model_dir, Registry())


class Build:
    """The things that one training, evaluation or prediction makes.

    Args:
        registry: Variables that are there already.
        values: First values of new variables, and of those that are found.
        resumes: The checkpoint that a training goes on from; None: it begins, or it is none.
        global_step: Asked for the step; None: it is not known where this is called.

    Attributes:
        global_step: Function that returns the step, as it was given.
        kept: Results of :func:`once`, by key.
        was_called: model_fn has returned once.
    """

    def __init__(
        self,
        registry: Registry,
        values: FirstValues,
        resumes: CheckpointReader | None = None,
        global_step: Callable[[], int] | None = None,
    ) -> None:
        self.registry = registry
        self.global_step = global_step
        self._resumes = resumes
        self._values = values
        self._met: set[str] = set()  # in this build
        self._direct: set[str] = set()
        self._in_once: set[str] = set()
        self.kept: dict[str, Any] = {}
        self.was_called = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Call model_fn once, by one replica."""
        with _active(_NamesOfCall(self, others=self._in_once, own=self._direct)):
            yield

    @contextmanager
    def building_once(self) -> Iterator[None]:
        """Call a function of :func:`once`, for all replicas together."""
        with _active(_NamesOfCall(self, others=self._direct, own=self._in_once, anew=False)):
            yield

    def variable(self, name: str, make: Callable[..., Variable], given: dict[str, Any]) -> Variable:
        """Find the variable of this name, or make it by ``make``. In cross-replica context.

        Raises:
            ConfigurationError: Its name is another program's under this strategy, or it has another
                shape than before.
        """
        variable = self.registry.variables.get(name)
        if variable is None:
            new: Variable = make(**self._values.arguments({**given, "name": name}))
            if new.name != name:
                raise ConfigurationError(
                    f"there is a variable {name!r} under this {type(new.strategy).__name__} "
                    "already, which is not of this Estimator; give each Estimator a strategy of "
                    "its own",
                    variable=name,
                )
            self.registry.variables[name] = variable = new
            self._values.made(new)
        elif name not in self._met:
            self._values.found(variable, given)
        self._met.add(name)
        return variable

    def check_model(self) -> None:
        """Check that a training goes on with a model of its own: model_fn has returned first.

        Raises:
            CheckpointError: The checkpoint has no variable of it.
        """
        reader = self._resumes
        mine = [
            variable.name for variable in self.registry.variables.values() if variable.trainable
        ]
        if reader is None or not mine:
            return
        self._resumes = None
        if any(reader.variable(name) is not None for name in mine):
            return
        raise CheckpointError(
            f"{reader.path} is of another model: it has {_some(reader.manifest.variables)}, and "
            f"model_fn makes {_some(mine)}. Give this model a model_dir of its own, or its "
            "variables the names they had",
            path=reader.path,
        )

    def checkpoint_has(self, name: str) -> bool:
        """Return whether the checkpoint that is looked at has a variable of this name."""
        return self._values.has(name)

    def found(self, name: str, given: dict[str, Any]) -> Variable | None:
        """Find the variable of this name, if this build has met it."""
        variable = self.registry.variables.get(name) if name in self._met else None
        initial = given.get("initial_value")
        if variable is None or initial is None or callable(initial):
            return variable
        if np.shape(initial) != variable.shape:
            raise ConfigurationError(
                f"model_fn makes {name!r} with shape {np.shape(initial)}; for the batch before it "
                f"had {variable.shape}. Give different variables different names",
                variable=name,
            )
        return variable


def _some(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:8]))


class _NamesOfCall:
    """Names in the order in which one call asks for them; a repeated one gets a number."""

    def __init__(self, build: Build, *, others: set[str], own: set[str], anew: bool = True) -> None:
        self.build = build
        self.kept = 0
        self._others, self._own = others, own
        self._taken: set[str] = set() if anew else own

    def name(self, wished: str) -> str:
        name, number = wished, 0
        while name in self._taken or name in self._others:
            number += 1
            name = f"{wished}_{number}"
        self._taken.add(name)
        self._own.add(name)
        return name


_names: ContextVar[_NamesOfCall | None] = ContextVar("ropewalk_model_fn", default=None)


@contextmanager
def _active(names: _NamesOfCall) -> Iterator[None]:
    # Once: a creator that is entered twice would be asked twice.
    creating = variable_creator_scope(_create) if _names.get() is None else nullcontext()
    token = _names.set(names)
    try:
        with creating:
            yield
    finally:
        _names.reset(token)


def _create(next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
    names = _names.get()
    assert names is not None  # noqa: S101 - the scope is entered with it
    build = names.build
    name = names.name(arguments.get("name") or "Variable")
    variable = build.found(name, arguments)
    if variable is not None:
        return variable
    _for_all_replicas(lambda: build.variable(name, next_creator, arguments))
    return build.registry.variables[name]


def once(function: Callable[..., _T], *args: Any, name: str | None = None, **kwargs: Any) -> _T:
    """Return what ``function`` returned when this model_fn came here first; it is not called again.

    ::

        def model_fn(features, labels, mode, params):
            net = rw.estimator.once(Net, params["hidden_units"])

    The result holds for one call of ``train``, ``evaluate`` or ``predict``: the next begins anew.
    With several replicas in a process all get the same object. Variables made in it, by bridges
    too, begin with the values of the checkpoint.

    Args:
        function: Function to call, in cross-replica context.
        args: Positional arguments of the function.
        name: Needed where calls of ``once`` do not come in the same order for every batch.
        kwargs: Keyword arguments of the function.

    Raises:
        RuntimeError: Outside of a model_fn.
    """
    names = _names.get()
    if names is None:
        raise RuntimeError("rw.estimator.once is of use in a model_fn, which an Estimator calls")
    build = names.build
    key = f"name:{name}" if name is not None else f"number:{names.kept}"
    if name is None:
        names.kept += 1

    def make() -> None:
        if key not in build.kept:
            with build.building_once():
                build.kept[key] = function(*args, **kwargs)

    if key not in build.kept:
        _for_all_replicas(make)
    kept: _T = build.kept[key]
    return kept


def get_global_step() -> int:
    """Return the global step before this batch, in a model_fn: as far as this worker knows; in an
    evaluation and a prediction the checkpoint's. In place of ``tf.train.get_global_step()``.

    Raises:
        RuntimeError: Outside of a model_fn, or in one that a remote cluster's worker calls.
    """
    names = _names.get()
    step = names.build.global_step if names is not None else None
    if step is None:
        raise RuntimeError(
            "rw.estimator.get_global_step is of use in a model_fn, which an Estimator calls; under "
            "remote_cluster workers do not know the step"
        )
    return step()


def checkpoint_has(name: str) -> bool:
    """Return whether the checkpoint that is looked at has a variable; of use in :func:`once`."""
    names = _names.get()
    return names is not None and names.build.checkpoint_has(name)


class _Asked:
    """The request of a replica; no structure that is taken apart."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def _make_first(strategy: Strategy, asked: Any) -> None:  # noqa: ARG001 - of a merge call
    first = asked.values[0] if isinstance(asked, DistributedValues) else asked
    first.make()


def _for_all_replicas(make: Callable[[], Any]) -> None:
    """Call a function once for the replicas that run, when all have come here."""
    context = get_replica_context()
    if context is None:
        make()
    else:
        context.merge_call(_make_first, (_Asked(make),))
