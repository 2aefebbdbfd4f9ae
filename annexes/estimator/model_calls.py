"""Calling the user's functions: model_fn with the arguments it names, and one step of the model.

model_fn runs in ``strategy.run``, once for each replica of this process, so reads of variables are
those of the step's pull and ``apply_gradients`` is part of its push. A ``train_op`` that is a
function is called behind that: bridges whose update is a step of its own (PyTorch, Keras) make it
there. With several replicas it is called in ``run``, by each of them.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.base.values import DistributedValues, leaves
from ...distribute.strategies.strategy import Strategy
from .building import Build
from .metrics import to_float
from .recording import Recording
from .spec import EstimatorSpec, ModeKeys

ModelFn = Callable[..., EstimatorSpec]
_NAMES = {ModeKeys.TRAIN: "TRAIN", ModeKeys.EVAL: "EVAL", ModeKeys.PREDICT: "PREDICT"}
_ARGUMENTS = ("features", "labels", "mode", "params", "config")


def check_model_fn(model_fn: Any, params: Mapping[str, Any] | None) -> ModelFn:
    """Check that a model_fn can be called, and return it.

    Raises:
        ConfigurationError: There is none; it lacks ``features``, has an argument that is never
            given, or does not take the ``params`` that were given.
        TypeError: It is no function.
    """
    if model_fn is None:
        raise ConfigurationError("model_fn must be provided to Estimator.")
    if not callable(model_fn):
        raise TypeError(f"model_fn must be a function, got {type(model_fn).__name__}")
    names, takes_all = _parameters(model_fn)
    if "features" not in names and not takes_all:
        raise ConfigurationError(f"model_fn ({_name(model_fn)}) must include features argument")
    if params is not None and "params" not in names and not takes_all:
        raise ConfigurationError(
            f"model_fn ({_name(model_fn)}) does not include params argument, but params "
            f"({dict(params)!r:.200}) is passed to Estimator"
        )
    unknown = [name for name, needed in names.items() if needed and name not in _ARGUMENTS]
    if unknown:
        raise ConfigurationError(
            f"model_fn ({_name(model_fn)}) has the argument {unknown[0]!r}; it is called with "
            f"{', '.join(_ARGUMENTS)}"
        )
    return model_fn  # type: ignore[no-any-return]


def call_with_known(function: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """Call a function with those of ``known`` that it takes by name."""
    names, takes_all = _parameters(function)
    return function(**{name: value for name, value in known.items() if takes_all or name in names})


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """List the names of parameters and whether each must be given; and whether it takes any
    name.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin
        return {}, False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return {
        parameter.name: parameter.default is inspect.Parameter.empty
        for parameter in parameters
        if parameter.kind in by_name
    }, takes_all


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


@dataclass(frozen=True)
class Called:
    """The result of model_fn for one replica, and what it recorded. No structure to take apart."""

    spec: EstimatorSpec
    recorded: Mapping[str, Any]
    loss: Any
    examples: int | None


@dataclass(frozen=True)
class Model:
    """A model_fn under a strategy, in one mode.

    Attributes:
        model_fn: The user's.
        mode: Mode in which model_fn is called.
        params: The user's; None: it takes none.
        config: The user's.
        strategy: Strategy under which it runs.
        build: Build that collects what model_fn makes.
    """

    model_fn: ModelFn
    mode: str
    params: Mapping[str, Any] | None
    config: Any
    strategy: Strategy
    build: Build

    def call(self, features: Any, labels: Any) -> tuple[Called, ...]:
        """Call model_fn for each replica of this process; in TRAIN a step.

        Raises:
            ConfigurationError: It returned no EstimatorSpec, or one of another mode; or it takes no
                labels, and there are some.
        """
        if self.mode != ModeKeys.TRAIN:
            return self._call(features, labels)
        with self.strategy.extended.as_one_step():  # however many optimizers train_op has
            return self._call(features, labels)

    def _call(self, features: Any, labels: Any) -> tuple[Called, ...]:
        alone = len(self.strategy.extended.replica_devices) == 1
        result = self.strategy.run(self._one_replica, args=(features, labels, alone))
        self.build.was_called = True
        parts: tuple[Called, ...] = (
            tuple(result.values) if isinstance(result, DistributedValues) else (result,)
        )
        if alone and self.mode == ModeKeys.TRAIN:
            with self.build.call():  # a bridge may make its variables with the first update
                return (_with_update(parts[0]),)
        return parts

    def _one_replica(self, features: Any, labels: Any, alone: bool) -> Called:
        if count_examples(features) == 0 and self.build.was_called:
            # Replicas end together; this one's input has ended. (The first time all have to be
            # there, as variables are made by all of them.)
            return Called(EstimatorSpec(ModeKeys.EVAL, loss=0.0), {}, None, 0)
        with self.build.call(), Recording() as recorded:
            spec = self._spec(features, labels)
            self.build.check_model()
            called = Called(spec, recorded, spec.loss, count_examples(features))
            if self.mode == ModeKeys.TRAIN and not alone:
                called = _with_update(called)
        return called

    def _spec(self, features: Any, labels: Any) -> EstimatorSpec:
        names, takes_all = _parameters(self.model_fn)
        if labels is not None and "labels" not in names and not takes_all:
            if self.mode == ModeKeys.PREDICT:
                labels = None
            else:
                raise ConfigurationError(
                    "model_fn does not take labels, but input_fn returns labels."
                )
        arguments = {
            "features": features,
            "labels": labels,
            "mode": self.mode,
            "params": dict(self.params or {}),
            "config": self.config,
        }
        spec = call_with_known(self.model_fn, arguments)
        if not isinstance(spec, EstimatorSpec):
            raise ConfigurationError(
                "model_fn should return an EstimatorSpec, it returned a "
                f"{type(spec).__name__} when it was called with mode={self.mode!r} "
                f"(ModeKeys.{_NAMES[self.mode]})"
            )
        if spec.mode != self.mode:
            raise ConfigurationError(
                f"model_fn was called with mode={self.mode!r} and returned an EstimatorSpec of "
                f"mode {spec.mode!r}; hand the mode on: EstimatorSpec(mode, …)"
            )
        return spec


def _with_update(called: Called) -> Called:
    """Make the update, if that was left to ``train_op``."""
    train_op = called.spec.train_op
    loss = called.loss
    if callable(train_op):
        returned = train_op()
        if loss is None:
            if returned is None:
                raise ConfigurationError(
                    "Missing loss: in ModeKeys.TRAIN an EstimatorSpec has one, or a train_op that "
                    "returns it"
                )
            loss = returned
    return Called(called.spec, called.recorded, to_float(loss), called.examples)


def count_examples(features: Any) -> int | None:
    """Count the examples of one replica's batch; None if that cannot be seen."""
    for leaf in leaves(features):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    return None
