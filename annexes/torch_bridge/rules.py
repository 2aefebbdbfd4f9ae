"""PyTorch: where an optimizer of ``torch.optim`` runs, and its rules on the servers.

Each parameter group has a rule of its own, whose settings follow the group: what a scheduler or the
program sets counts from the next step on.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...core.rules.update_rules import OnServer, OnWorker, Place
from ...distribute.optimizer import Optimizer
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from ...training.own_optimizer import Deltas, choose_place
from ...training.rule_table import optimizer_of, place_torch
from .tensors import to_array

torch: Any = require("torch", "torch")

_PARAMETERS = ("params", "param_names")  # in a group, beside its settings


class TorchRules:
    """The rules of an optimizer's parameter groups.

    Args:
        optimizer: Optimizer of ``torch.optim``, or one with the same interface.
        deltas: Whether it may run on the worker.
        reason: Why it has to run there, as the rest of a sentence that begins with its name; None:
            it need not.

    Attributes:
        kind: The name of the optimizer's class.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
        have_state: Whether the servers keep more than the parameters, such as moments.

    Raises:
        ConfigurationError: It is differentiable; or it has no rule, and deltas are forbidden.
    """

    def __init__(self, optimizer: Any, deltas: Deltas, *, reason: str | None = None) -> None:
        _refuse_differentiable(optimizer)
        self._optimizer, self.kind = optimizer, type(optimizer).__name__
        wanted = [
            self._place(group) if reason is None else OnWorker(reason)
            for group in optimizer.param_groups
        ]
        places = [choose_place(place, deltas, self.kind) for place in wanted]
        left = [place for place in places if isinstance(place, OnWorker)]
        self.worker_reason = left[0].reason if left else None
        self._rules = [
            (optimizer_of(place), place.decay, _settings(group))
            for place, group in zip(places, optimizer.param_groups, strict=True)
            if isinstance(place, OnServer) and not left
        ]
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]
        self.have_state = any(rule.rule.slot_start() for rule, _, _ in self._rules)

    def optimizers(self, names: Mapping[int, str]) -> dict[str, Optimizer]:
        """Find the rule of each parameter, by name; none if the optimizer runs on this worker.

        Args:
            names: Names of parameters, by the id of their tensors. Those without one get no rule.
        """
        return {
            names[id(parameter)]: rule
            for (rule, _, _), group in zip(self._rules, self._optimizer.param_groups, strict=False)
            for parameter in group["params"]
            if id(parameter) in names
        }

    def completed(
        self, gradients: dict[str, Any], parameters: Mapping[str, Any], *, share: float = 1.0
    ) -> dict[str, Any]:
        """Add what rules leave to the worker: coupled weight decay, and gradients of all rows of a
        parameter with momentum, which in PyTorch goes on in rows that a sparse gradient has not.

        Args:
            gradients: Gradients by name, changed in place.
            parameters: Parameters by name, each with its ``grad``.
            share: Share of the decay that this worker adds: where gradients of several workers are
                added up, the decay must count once.

        Raises:
            ConfigurationError: A parameter with a decay has a sparse gradient.
        """
        rows = {name for name, gradient in gradients.items() if isinstance(gradient, IndexedSlices)}
        for (rule, decay, _), group in zip(self._rules, self._optimizer.param_groups, strict=True):
            moves_all = bool(rows) and bool(getattr(rule.rule, "momentum", 0.0))
            if not decay and not moves_all:
                continue
            chosen = {id(parameter) for parameter in group["params"]}
            for name, parameter in parameters.items():
                if id(parameter) in chosen and name in gradients:
                    if not decay:
                        if name in rows:
                            gradients[name] = to_array(parameter.grad.to_dense())
                        continue
                    if parameter.grad.layout is not torch.strided:
                        raise ConfigurationError(
                            f"{name!r} has a sparse gradient, and {self.kind} a weight_decay of "
                            f"{decay:g}, which changes all rows; put it into a group without one",
                            variable=name,
                        )
                    whole = parameter.grad.add(parameter.detach(), alpha=decay * share)
                    gradients[name] = to_array(whole)
        return gradients

    def follow(self) -> None:
        """Let what a scheduler or the program has changed in the groups count from this step on.

        Raises:
            ConfigurationError: The optimizer has no rule any more, or other parameters.
        """
        for number, group in enumerate(self._optimizer.param_groups):
            rule, _, before = self._rules[number]
            if len(group["params"]) != self._sizes[number]:
                raise ConfigurationError(
                    f"parameter group {number} of this {self.kind} had {self._sizes[number]} "
                    f"parameters when it was wrapped and has {len(group['params'])} now, and the "
                    "servers train those that it had; freeze one by requires_grad_(False), and add "
                    "parameters before the optimizer is wrapped",
                    optimizer=self.kind,
                )
            count = len(group) - sum(key in group for key in _PARAMETERS)
            if count == len(before) and before.items() <= group.items():
                continue
            now = _settings(group)
            if now == before:
                continue
            place = self._place(group)
            if isinstance(place, OnWorker):
                raise ConfigurationError(
                    f"{self.kind} {place.reason} since its parameter group {number} was changed, "
                    "and its state is on the servers; set it before the optimizer is wrapped"
                )
            for field, value in place.arguments.items():
                if getattr(rule, field) != value:
                    setattr(rule, field, value)
            self._rules[number] = (rule, place.decay, now)

    def _place(self, group: Mapping[str, Any]) -> Place:
        if not type(self._optimizer).__module__.startswith("torch.optim"):
            return OnWorker("is not one of torch.optim")
        return place_torch(self.kind, group)


def has_stepped(optimizer: Any) -> bool:
    """Return whether an optimizer has made steps; Adagrad has a state before the first one, too."""
    return any(float(state.get("step", 1)) > 0 for state in optimizer.state.values())


def refuse_several_losses(optimizer: Any, remedy: str) -> None:
    """Refuse an optimizer that computes several losses in a step, where it is given one.

    Args:
        optimizer: Optimizer of ``torch.optim``.
        remedy: Advice, as an imperative.

    Raises:
        ConfigurationError: It is ``LBFGS``.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(
            f"LBFGS computes several losses in a step, and here it is given one; {remedy}",
            optimizer="LBFGS",
        )


def _refuse_differentiable(optimizer: Any) -> None:
    if any(group.get("differentiable") for group in optimizer.param_groups):
        kind = type(optimizer).__name__
        raise ConfigurationError(
            f"this {kind} is differentiable, and a shared step writes values into its parameters, "
            f"through which nothing can be differentiated. Keep the {kind} of the inner loop as it "
            "is, and share the optimizer of what is learned through it",
            optimizer=kind,
        )


def step_without_hooks(optimizer: Any, *closure: Callable[[], Any]) -> Any:
    """Make an optimizer's own step, without the hooks that are called around a shared one.

    Args:
        optimizer: Optimizer of PyTorch.
        closure: Closure that its ``step`` is given, or nothing.

    Returns:
        Result of the step.
    """
    step = type(optimizer).step
    plain = step.__wrapped__ if getattr(step, "hooked", False) else step
    loss = plain(optimizer, *closure)
    optimizer._opt_called = True  # as a scheduler that was made with it looks for
    return loss


def take_scale_out(optimizer: Any, parameters: Mapping[str, Any], strategy: Strategy) -> bool:
    """Take the scale of a GradScaler out of gradients.

    Args:
        optimizer: A GradScaler has given it ``found_inf`` and ``grad_scale``, or there is none.
        parameters: Parameters by name; their ``grad`` is changed in place.
        strategy: Strategy under which workers skip steps together.

    Returns:
        False: the gradients of some worker have infinities, and all leave this step out.
    """
    scaler_flag = vars(optimizer).get("found_inf")  # not by the way that ends with an error
    if scaler_flag is None:
        return True
    if strategy.extended.any_worker(bool(scaler_flag.item())):
        return False
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / float(scale))
    return True


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _as_it_is(value) for key, value in group.items() if key not in _PARAMETERS}


def _as_it_is(setting: Any) -> Any:
    """Copy a setting that later changes in place leave alone: a rate may be a tensor."""
    if isinstance(setting, torch.Tensor):
        return setting.tolist()
    if isinstance(setting, tuple):
        return tuple(map(_as_it_is, setting))
    return setting
