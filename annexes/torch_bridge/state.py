"""The state of an optimizer of PyTorch as arrays by name, and back."""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from ...training.kept_state import KeptState, can_keep
from .host_copies import HostCopies
from .tensors import to_tensor

torch: Any = require("torch", "torch")

log = logging.getLogger(__name__)


class TorchState:
    """The state that an optimizer keeps of each parameter.

    torch makes a state with the first step, and says nowhere what it will be; so a copy of the
    optimizer makes one step of zeros. That takes memory for parameters, gradients and state once
    more, for a moment.

    Args:
        optimizer: Optimizer whose state it is. Is not changed.
        parameters: Parameters by name.

    Attributes:
        optimizer: Optimizer whose state it is.
        entries: First values, by ``parameter/entry``; empty if the state cannot be kept.
    """

    def __init__(self, optimizer: Any, parameters: Mapping[str, Any]) -> None:
        self.optimizer, self._parameters = optimizer, parameters
        self._copies = HostCopies()
        self._like: dict[str, dict[str, Any]] = {}
        self.entries: dict[str, Array] = {}
        try:
            self._like = _after_a_step(optimizer, parameters)
            self.entries = _flat(self._like)
        except Exception as error:  # noqa: BLE001 - whatever an optimizer that is not torch's may raise
            log.warning(
                "the state of %s is not in the job's checkpoints, since a step of a copy failed: "
                "%s. Save its state_dict yourself",
                type(optimizer).__name__,
                error,
            )
            self._like = {}

    def kept(self, strategy: Strategy, prefix: str) -> KeptState | None:
        """Make the state as the job's checkpoints have it; None: there is nothing to keep.

        Args:
            strategy: Strategy under which it is kept.
            prefix: Prefix of its names.
        """
        if not self.entries:
            return None
        kind = type(self.optimizer).__name__
        return KeptState(self.entries, self.load, strategy, kind=kind, prefix=prefix)

    def now(self, _: object = None, /) -> dict[str, Array]:
        """Read the entries as they are, of the same memory where that is possible."""
        state, none = self.optimizer.state, dict[str, Any]()
        entries = {
            entry: value
            for name, parameter in self._parameters.items()
            for key, value in state.get(parameter, none).items()
            if (entry := f"{name}/{key}") in self.entries and value is not None
        }
        return _on_host(entries, self._copies)

    def load(self, entries: Mapping[str, Array]) -> None:
        """Have these entries, and of parameters that have none no state."""
        for name, like in self._like.items():
            stored = {
                key: _as(entries[f"{name}/{key}"], value)
                for key, value in like.items()
                if f"{name}/{key}" in entries
            }
            if stored:
                none = {key: None for key, value in like.items() if value is None}
                self.optimizer.state[self._parameters[name]] = stored | none


class StateCopy:
    """A copy of what an optimizer knows beside its parameters, as it is now, to be put back.

    Args:
        optimizer: Optimizer of PyTorch.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._state = {p: copy.deepcopy(entries) for p, entries in optimizer.state.items()}
        self._groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]

    def put_back(self) -> None:
        """Have the optimizer go on from it."""
        state = self._optimizer.state
        state.clear()
        state.update(self._state)
        for group, copied in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(copied)


def _flat(state: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """Flatten the entries to ``parameter/entry``, checked."""
    stored = {
        f"{name}/{key}": value
        for name, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }
    flat = _on_host(stored, HostCopies())
    for name, array in flat.items():
        if not can_keep(array):
            raise TypeError(f"{name!r} is a {type(stored[name]).__name__}")
    return flat


def _on_host(entries: Mapping[str, Any], copies: HostCopies) -> dict[str, Array]:
    """Convert entries to arrays; those of another device in buffers of ``copies``."""
    dense = {n: t for n, t in entries.items() if getattr(t, "layout", None) is torch.strided}
    copied: Mapping[str, Any] = copies.gradients(dense)
    return {n: copied[n] if n in copied else np.asarray(value) for n, value in entries.items()}


def _after_a_step(optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        # A copy would have torch call them, of the copied optimizer, too.
        raise TypeError("it has not called torch.optim.Optimizer.__init__, so it cannot be copied")
    probe = copy.deepcopy(optimizer)
    # What a copy forgets: else torch asks it on CUDA for an option that not every optimizer has.
    probe._warned_capturable_if_run_uncaptured = True
    probe.state.clear()
    names = {id(parameter): name for name, parameter in parameters.items()}
    pairs = [
        (names[id(own)], copied)
        for group, twin in zip(optimizer.param_groups, probe.param_groups, strict=True)
        for own, copied in zip(group["params"], twin["params"], strict=True)
    ]
    for _, parameter in pairs:
        rows = isinstance(optimizer, torch.optim.SparseAdam)
        zeros = torch.zeros_like(parameter, requires_grad=False)
        parameter.grad = zeros.to_sparse(1) if rows else zeros
    probe.step()
    return {name: dict(probe.state[parameter]) for name, parameter in pairs}


def _as(array: Array, like: Any) -> Any:
    if isinstance(like, torch.Tensor):
        return to_tensor(array).to(like).clone()
    return type(like)(array.item())
