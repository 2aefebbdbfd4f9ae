"""Gradients of PyTorch parameters between ``backward`` and ``step``, of workers in sync.

The step averages the gradients of all workers, so what a program does to them before, it does to
those of its own worker. For clipping by the norm, and for most else, that is not what one process
computes on the whole batch. So backward leaves a mark on each gradient, and a step whose gradients
have other marks is an error, unless the program has had them averaged by ``synchronize``.
"""

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigurationError
from ...training.array_store import ArrayStore
from ...training.extras import require
from .tensors import from_gradient, to_tensor

torch: Any = require("torch", "torch")

log = logging.getLogger(__name__)


class GradientsInSync:
    """The gradients of one optimizer, on a worker that is in sync with others.

    Args:
        store: Has the parameters.
        parameters: Parameters by name.
    """

    def __init__(self, store: ArrayStore, parameters: Mapping[str, Any]) -> None:
        self._store, self._parameters = store, parameters
        self._marks: dict[str, tuple[int, int]] = {}  # of gradients, as backward has left them
        self._are_reduced = self._were_reduced = False  # until the next backward; in this step
        for name, parameter in parameters.items():
            if _has_hook(parameter):
                log.warning(
                    "%r has a hook on its gradient, which sees that of this worker, before workers "
                    "in sync average theirs; change gradients after optimizer.synchronize() "
                    "instead",
                    name,
                )
            _call_after_backward(parameter, weakref.WeakMethod(self._mark), name)

    def _mark(self, name: str, gradient: Any) -> None:
        self._marks[name] = _mark_of(gradient)
        self._are_reduced = False

    def reduce(self, gradients: Mapping[str, Any]) -> None:
        """Give parameters the gradients of all workers; each worker has to call this.

        Args:
            gradients: Gradients of this worker, by name, as the store takes them.

        Raises:
            ConfigurationError: They are added up, and some were reduced in this step before.
        """
        self._refuse_sums()
        for name, reduced in self._store.reduce(gradients).items():
            parameter = self._parameters[name]
            if parameter.grad.layout is torch.strided:
                with torch.no_grad():
                    parameter.grad.copy_(to_tensor(reduced))
            else:
                parameter.grad = from_gradient(reduced, parameter)
        self._are_reduced = self._were_reduced = True

    def begin_step(self) -> bool:
        """Begin a step; returns whether gradients are those of all workers already.

        Raises:
            ConfigurationError: The program has changed one of this worker's since backward.
        """
        reduced = self._are_reduced
        if not reduced:
            self._refuse_sums()
            self._refuse_changes()
        self._marks.clear()
        self._are_reduced = self._were_reduced = False
        return reduced

    def _refuse_changes(self) -> None:
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None or self._marks.get(name) == _mark_of(gradient):
                continue
            if gradient.any():  # zero_grad(set_to_none=False) leaves zeros, which have a mean
                raise ConfigurationError(
                    f"the gradient of {name!r} is not as backward has left it: this program "
                    "changes gradients before step, as clipping does, and they are those of this "
                    "worker alone, which step averages over the workers in sync. Call "
                    "`optimizer.synchronize()` after backward, which averages them there (with a "
                    "GradScaler before its unscale_)",
                    variable=name,
                )

    def _refuse_sums(self) -> None:
        if self._were_reduced and not self._are_reduced and not self._store.mean:
            raise ConfigurationError(
                "backward was called between synchronize() and step(), and this optimizer adds up "
                "the gradients of workers (mean=False), so some would count several times; call "
                "synchronize() after the last backward of a step"
            )


def _has_hook(parameter: Any) -> bool:
    """Return whether the program is given the gradient before it is averaged."""
    hook_tables = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    hooks = [hook for table in hook_tables if table for hook in table.values()]
    return any(getattr(hook, "__module__", None) != __name__ for hook in hooks)


def _call_after_backward(parameter: Any, mark: Any, name: str) -> None:
    def hook(parameter: Any) -> None:
        note = mark()
        if note is not None:  # else its optimizer is gone
            note(name, parameter.grad)

    trained = parameter.requires_grad
    parameter.requires_grad_(True)  # one that is frozen now may be trained later
    parameter.register_post_accumulate_grad_hook(hook)
    parameter.requires_grad_(trained)


def _mark_of(gradient: Any) -> tuple[int, int]:
    """Return a mark that is another one after each change in place, and of another tensor; a
    GradScaler's leave none.
    """
    return id(gradient), gradient._version
