"""Keras outside of ``fit``: optimizers that share what they train, in loops that programs write.

An optimizer that is made in ``strategy.scope()``, or trains a model that is, shares the weights it
trains. Where the program applies gradients (``apply``, ``apply_gradients``, ``stateless_apply``),
they are pushed, and the weights have the values that come back. So tutorials' loops train here as
they stand, on JAX, PyTorch and TensorFlow, and so does a ``train_step`` with several optimizers.

What ``fit`` does for a compiled model is done here for a :class:`Group`, which stands for a model.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from importlib import import_module
from typing import Any

from ...core.errors import ConfigurationError
from ...core.process.frameworks import note_unshared_step
from ...distribute.base.contexts import is_running, top_frame
from ...distribute.strategies.strategy import Strategy
from .framework_steps import steps_module
from .frameworks import framework_of_keras, looks_for_shapes
from .loop_state import LOOP, MADE_UNDER, is_plain, plainly
from .optimizer import KerasTrainer, OptimizerTrainer
from .shared_variables import shared_variables, strategies_in_use
from .weights import SharedWeights


class Group:
    """Stands for a model where there are weights and an optimizer, and no model is compiled.

    Args:
        optimizer: Optimizer that trains them; None: they are only shared.
        trainable: Weights that it trains.
        models: Models that hold some of these; their averages are shared, too.
    """

    built = True
    trainer: Callable[..., OptimizerTrainer] = KerasTrainer

    def __init__(self, optimizer: Any, trainable: Sequence[Any], models: Sequence[Any]) -> None:
        self.optimizer, self._trainable = optimizer, _each_once(trainable)
        named = models[0] if optimizer is None else optimizer
        self.name = getattr(named, "name", type(named).__name__)  # PyTorch's have none
        self._models = models
        self.weights = _each_once([*trainable, *(v for model in models for v in model.weights)])

    @property
    def trainable_variables(self) -> list[Any]:
        """Variables that are trained now."""
        return list(self._trainable)

    def steps(self, weights: SharedWeights) -> Any:
        """Make what pushes the gradients of this group."""
        if framework_of_keras() == "jax":
            return import_module(".jax_loops", __package__).LoopSteps(weights)
        return steps_module().STEPS(weights)

    def _flatten_layers(self) -> list[Any]:
        layers = [layer for model in self._models for layer in model._flatten_layers()]
        return [layer for layer in _each_once(layers) if layer.built]


def _each_once(objects: Sequence[Any]) -> list[Any]:
    """List each object once, in order; models may hold the same layers, and a Sequential has a
    model in it.
    """
    return list({id(item): item for item in objects}.values())


def group_of(model: Any) -> Group:
    """Group the weights of a model, to be shared and not trained."""
    return Group(None, model.trainable_variables, [model])


def _shared(group: Group, strategy: Strategy) -> SharedWeights:
    return SharedWeights(
        group,
        strategy,
        deltas="allow",
        mean=True,
        name="",
        steps=group.steps,
        trainer=group.trainer,
    )


class Loop:
    """An optimizer under a strategy, outside of ``fit``.

    Args:
        group: Group that it trains.
        strategy: Strategy of the loop.
    """

    def __init__(self, group: Group, strategy: Strategy) -> None:
        self.strategy, self.group = strategy, group
        self._shared = shared_variables(strategy)

        def share() -> tuple[SharedWeights, bool]:
            weights = _shared(group, strategy)
            return weights, strategy.extended.any_worker(weights.began_elsewhere)

        self.weights, self._leaves_out = apart(share)
        self._steps: Any = self.weights.backend
        self._steps.begin()

    @property
    def checkpointed(self) -> SharedWeights:
        """Weights that the optimizer trains, which ``rw.train.Checkpoint`` saves."""
        weights: SharedWeights = self.weights
        return weights

    def note_built(self) -> None:
        """Note that no gradient is under way that was made of other values."""
        self._leaves_out = False

    def apply(
        self, gradients: Sequence[Any], variables: Sequence[Any], *, in_run: bool
    ) -> Sequence[Any]:
        """Push gradients, and load what comes back.

        Args:
            gradients: Gradients of these variables, none of which is None.
            variables: Variables of Keras.
            in_run: Whether the program applies them in ``strategy.run``.

        Returns:
            The values of the variables, in order.
        """
        if not self._leaves_out:
            self._steps.follow()
            with self.step(in_run=in_run):
                self._steps.push(gradients, variables)
        self._leaves_out = False
        values, name_of = self._shared.values, self.weights.name_of
        return [values[name_of(variable) or ""] for variable in variables]

    def stateless_apply(
        self, state: Sequence[Any], gradients: Sequence[Any], values: Sequence[Any]
    ) -> Any:
        """Apply as Keras does on JAX: returns the values that come back, and the optimizer's
        state.
        """
        return self._steps.stateless_apply(state, gradients, values, self)

    def step(self, *, in_run: bool) -> AbstractContextManager[None]:
        """Enter a step while gradients are pushed: several optimizers in turn make one step of this
        worker.

        A step ends when an optimizer is applied that was applied in it already.

        Args:
            in_run: The program applies gradients in ``strategy.run``, where those of replicas add
                up as in tf.distribute; outside they are averaged, as in ``fit``.
        """
        self.weights.store.mean = not in_run
        if is_running(self.strategy):
            return nullcontext()  # the run is the step
        applied = self._shared.applied
        if applied and id(self) not in applied:
            applied.add(id(self))
            return self.strategy.extended.same_step()
        applied.clear()
        applied.add(id(self))
        return nullcontext()


def share_models(strategy: Strategy) -> None:
    """Give the models of a scope the chief's values, before a loop uses them.

    Only where an optimizer was made in the scope that no compiled model has.
    """
    shared = shared_variables(strategy)
    if shared.is_sharing or not shared.optimizers or looks_for_shapes():
        return  # in the last case weights have no values yet; the model that is being built does so
    if framework_of_keras() == "tensorflow" and steps_module().is_tracing():
        return  # variables have no values; the first step shares them
    models = [model for model in shared.new_models() if model.weights]
    if models:
        trainable = [v for model in models for v in model.trainable_variables]
        group = Group(None, trainable, models)
        apart(lambda: _shared(group, strategy))


def apply(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None) -> bool:
    """Apply gradients to shared weights; False: they are not shared, or Keras' own code runs.

    Raises:
        ValueError: No gradient at all, as Keras says it.
        ConfigurationError: Replicas of this process are in a graph; says what to write instead.
    """
    strategy = strategy_of(optimizer, variables)
    if strategy is None or not gradients:
        return False
    trained = list(optimizer._trainable_variables if variables is None else variables)
    if not optimizer.built:
        with plainly():
            optimizer.build(trained)
    kept, trained = map(list, optimizer._filter_empty_gradients(gradients, trained))
    in_run = is_running(strategy)
    backend = steps_module()
    if framework_of_keras() == "tensorflow" and backend.is_tracing():
        require_one_replica(optimizer, strategy, "a tf.function")
        backend.apply_in_graph(
            optimizer,
            lambda arrays: loop_of(optimizer, strategy).apply(arrays, trained, in_run=in_run),
            kept,
            trained,
        )
    else:
        if framework_of_keras() == "jax":
            import_module(".jax_loops", __package__).require_arrays(optimizer, kept)
        loop_of(optimizer, strategy).apply(kept, trained, in_run=in_run)
    return True


def loop_of(optimizer: Any, strategy: Strategy) -> Loop:
    """Find or make how a built optimizer shares what it trains."""
    loop: Loop | None = vars(optimizer).get(LOOP)
    if loop is None:
        trained = optimizer._trainable_variables
        models = shared_variables(strategy).models_with(trained)
        loop = Loop(Group(optimizer, trained, models), strategy)
        object.__setattr__(optimizer, LOOP, loop)
        shared_variables(strategy).optimizers.discard(optimizer)  # it needs no scope's end any more
    return loop


def strategy_of(optimizer: Any, variables: Sequence[Any] | None = None) -> Strategy | None:
    """Find the strategy under which an optimizer's steps are shared; None: Keras' own code runs.

    Args:
        optimizer: The Keras optimizer.
        variables: Variables that it gets gradients for; None: those it was built with.
    """
    loop = vars(optimizer).get(LOOP)
    if is_plain() or loop is False or hasattr(optimizer, "inner_optimizer"):
        return None
    if isinstance(loop, Loop):
        return loop.strategy
    strategy: Strategy | None = vars(optimizer).get(MADE_UNDER)
    if strategy is None:
        trained = optimizer._trainable_variables if variables is None else variables
        users = strategies_in_use()
        strategy = next((s for s in users if shared_variables(s).models_with(trained)), None)
    if strategy is None:
        object.__setattr__(optimizer, LOOP, False)
        note_unshared_step(f"keras.optimizers.{type(optimizer).__name__}")
    return strategy


def require_one_replica(optimizer: Any, strategy: Strategy, where: str) -> None:
    """Refuse a compiled function in which replicas cannot wait for each other.

    Raises:
        ConfigurationError: There are several replicas in this process.
    """
    count = len(strategy.extended.replica_devices)
    if count > 1:
        raise ConfigurationError(
            f"{type(optimizer).__name__} is applied in {where}, under a "
            f"{type(strategy).__name__} with {count} replicas in this process, which cannot wait "
            "for each other in it. Apply gradients outside of it, use compile and fit, or start a "
            "process for each replica"
        )


def apart(function: Callable[[], Any]) -> Any:
    """Call a function outside of the ``run`` that this thread may be in."""
    frame = top_frame()
    if frame is None or frame.replica is None:
        return function()
    with ThreadPoolExecutor(1, thread_name_prefix="share") as thread:
        return thread.submit(copy_context().run, function).result()
