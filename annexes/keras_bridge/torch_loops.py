"""Keras on PyTorch outside of ``fit``, with an optimizer of ``torch.optim`` as in Keras' guide.

::

    with strategy.scope():
        model = keras.Sequential([...])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches:
        loss = loss_of(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()

An optimizer that is given parameters of a model of a scope has another ``step`` from then on, which
shares them as the ``apply`` of an optimizer of Keras does (``loops.py``). Its rules are those that
``rw.training.torch.DistributedOptimizer`` has, too (``torch_trainer.py``).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...distribute.base.contexts import is_running
from ...distribute.optimizer import Optimizer
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from ...training.own_optimizer import Deltas
from ..torch_bridge.names import SHARED
from ..torch_bridge.rules import (
    TorchRules,
    has_stepped,
    refuse_several_losses,
    step_without_hooks,
    take_scale_out,
)
from ..torch_bridge.state import StateCopy, TorchState
from ..torch_bridge.tensors import torch
from .loop_state import LOOP
from .loops import Group, Loop
from .shared_variables import SharedVariables, models_of_scopes, shared_variables
from .torch_steps import TorchSteps
from .weights import SharedWeights

# -- Keras on PyTorch: an optimizer of ``torch.optim`` that trains the weights of a model of Keras


class TorchTrainer:
    """An optimizer of ``torch.optim`` as a ``OptimizerTrainer``.

    Args:
        optimizer: Optimizer of PyTorch.
        trained: The variables of Keras that it updates.
        deltas: Whether it may run on the worker.
        shared: Variables that other optimizers train.
        tensors: All of its parameters, by name.

    Raises:
        ConfigurationError: It has made steps already, and the servers would begin with a fresh
            state; or it computes several losses in a step.
    """

    settings: Mapping[str, Any] = {}
    server_state = ""  # a model of Keras is compiled with an optimizer of Keras

    def __init__(
        self,
        optimizer: Any,
        trained: Sequence[Any],
        deltas: Deltas,
        shared: SharedVariables,
        tensors: Mapping[str, Any],
    ) -> None:
        self._optimizer, self._tensors = optimizer, tensors
        refuse_several_losses(optimizer, "take another optimizer")
        other = shared.trained_by_another(optimizer, trained)
        reason = f"updates a weight that another optimizer updates, too ({other!r})"
        self.groups = TorchRules(optimizer, deltas, reason=None if other is None else reason)
        self.worker_reason = self.groups.worker_reason
        if self.worker_reason is None and has_stepped(optimizer):
            raise ConfigurationError(
                f"this {self.groups.kind} has a state already, and the servers begin with a fresh "
                "one; train a model of a scope with a new optimizer from its first step on. Its "
                "state is in the job's checkpoints",
                optimizer=self.groups.kind,
            )

    def rules(self, variables: Mapping[str, Any]) -> dict[str, Optimizer]:
        """Find the rules of the parameter groups."""
        return self.groups.optimizers({id(v._value): name for name, v in variables.items()})

    def own_state(self, array: Callable[[Any], Array]) -> TorchState:  # noqa: ARG002
        """Make the state that the optimizer keeps of each parameter."""
        return TorchState(self._optimizer, self._tensors)


def follow_torch_optimizers() -> None:
    """Change the base class of PyTorch's optimizers where it is given parameters.

    Those of no model of a scope do what they did.
    """
    base = require("torch.optim", "torch").Optimizer
    add = base.add_param_group

    @functools.wraps(add)
    def added(self: Any, param_group: dict[str, Any]) -> None:
        if LOOP in vars(self):
            raise ConfigurationError(
                f"torch.optim.{type(self).__name__} shares what it trains since its first step, "
                "and takes no further parameters; add the group before",
                optimizer=type(self).__name__,
            )
        add(self, param_group)
        strategy = None if SHARED in vars(self) else _strategy_of(self)
        if strategy is not None:
            self.step = MethodType(_step, self)
            self._step_supports_amp_scaling = True  # all workers skip a step together
            shared_variables(strategy).optimizers.add(self)

    base.add_param_group = added


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _strategy_of(optimizer: Any) -> Strategy | None:
    """Find the strategy of the models that an optimizer trains; None: they are of no scope."""
    ids = set(map(id, _parameters(optimizer)))
    for strategy, model in models_of_scopes():
        if any(id(variable._value) in ids for variable in model.weights):
            return strategy
    return None


def _step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
    """Stand in the place of an optimizer's ``step``; its hooks see gradients that no GradScaler
    scales.

    Returns:
        Result of ``closure``; None without one.
    """
    if SHARED in vars(optimizer):  # a DistributedOptimizer was made of it, and calls this
        return type(optimizer).step(optimizer, *([] if closure is None else [closure]))
    loop = vars(optimizer).get(LOOP)
    if loop is None:
        loop = vars(optimizer)[LOOP] = _new_loop(optimizer)
    if not take_scale_out(optimizer, loop.group.tensors, loop.strategy):
        return None
    return torch.optim.Optimizer.profile_hook_step(_push)(optimizer, closure)


def _push(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """Push the gradients, and load what comes back."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    loop = vars(optimizer)[LOOP]
    trained = [v for v in loop.group.held.values() if v._value.grad is not None]
    with torch.no_grad():
        gradients = [variable._value.grad for variable in trained]
        loop.apply(gradients, trained, in_run=is_running(loop.strategy))
    return loss


def _new_loop(optimizer: Any) -> Loop:
    """Make the loop by which an optimizer shares what it trains.

    Raises:
        ConfigurationError: It cannot; says what to write instead.
    """
    kind = type(optimizer).__name__
    strategy = _strategy_of(optimizer)
    assert strategy is not None  # noqa: S101 - there was one when its step was changed
    of_models = {
        id(variable._value): variable
        for model in shared_variables(strategy).living_models()
        for variable in model.weights
    }
    parameters = _parameters(optimizer)
    others = sum(id(parameter) not in of_models for parameter in parameters)
    if others:
        raise ConfigurationError(
            f"torch.optim.{kind} trains a model of the scope of a {type(strategy).__name__}, and "
            f"{others} parameters of no such model, which it would train on this worker alone; "
            "give them an optimizer of their own, and that to "
            "rw.training.torch.DistributedOptimizer",
            optimizer=kind,
        )
    held = [of_models[id(parameter)] for parameter in parameters]
    models = shared_variables(strategy).models_with(held)
    return Loop(TorchGroup(optimizer, held, models), strategy)


class TorchGroup(Group):
    """The variables of Keras that an optimizer of PyTorch is given.

    Attributes:
        held: Variables of Keras, by the paths that their parameters have.
        tensors: Parameters of these variables.
    """

    def __init__(self, optimizer: Any, held: Sequence[Any], models: Sequence[Any]) -> None:
        super().__init__(optimizer, held, models)
        self.held = {variable.path: variable for variable in held}
        self.tensors = {path: variable._value for path, variable in self.held.items()}

    @property
    def trainable_variables(self) -> list[Any]:
        """Variables that are trained now: ``model.parameters()`` has all, and some may be
        frozen.
        """
        return [variable for variable in self._trainable if variable.trainable]

    def trainer(
        self, optimizer: Any, trained: Sequence[Any], deltas: Deltas, shared: SharedVariables
    ) -> "TorchTrainer":
        """Make the trainer of the optimizer."""
        return TorchTrainer(optimizer, trained, deltas, shared, self.tensors)

    def steps(self, weights: SharedWeights) -> "TorchLoopSteps":
        """Make steps with the rules of the optimizer's groups."""
        return TorchLoopSteps(weights)


class TorchLoopSteps(TorchSteps):
    """Steps whose gradients are given to an optimizer of ``torch.optim``."""

    def build_optimizer(self) -> None:
        """Do nothing: PyTorch makes its state in the first step."""

    def state_copy(self) -> Callable[[], None]:
        """Copy what the optimizer on this worker knows; what is returned puts it back."""
        return StateCopy(self._weights.optimizer).put_back

    def push(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Push the gradients of a step, and load what comes back.

        Raises:
            ConfigurationError: One is of a weight that was frozen when the first step was made,
                and is not shared in sync.
        """
        weights = self._weights
        if any(weights.name_of(v) not in self._trainable for v in variables):
            self.begin()  # a part was frozen, and trains again
        super().push(gradients, variables)

    def push_to_servers(
        self, named: dict[str, Array], changed: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Push by the rules of the groups, with their settings of now."""
        weights, trainer = self._weights, self._weights.trainer
        assert isinstance(trainer, TorchTrainer)  # noqa: S101 - of a TorchGroup
        trainer.groups.follow()
        extended = weights.store.strategy.extended
        share = 1.0 if weights.store.mean else 1.0 / extended.num_replicas_in_sync
        tensors = {name: variable._value for name, variable in self._trainable.items()}
        named = trainer.groups.completed(named, tensors, share=share)
        return weights.exchange(named, changed=changed)

    def apply_here(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Make the optimizer's own step, with the gradients of all workers in sync."""
        optimizer = self._weights.optimizer
        for gradient, variable in zip(gradients, variables, strict=True):
            variable._value.grad = gradient
        scales = ("grad_scale", "found_inf")  # of a GradScaler, which are taken out already
        hidden = {key: vars(optimizer).pop(key) for key in scales if key in vars(optimizer)}
        try:
            step_without_hooks(optimizer)
        finally:
            vars(optimizer).update(hidden)
