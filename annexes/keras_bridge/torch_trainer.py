"""Keras on PyTorch: an optimizer of ``torch.optim`` that trains the weights of a model of Keras."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...distribute.optimizer import Optimizer
from ...training.own_optimizer import Deltas
from ..torch_bridge.rules import TorchRules, has_stepped, refuse_several_losses
from ..torch_bridge.state import TorchState
from .shared_variables import SharedVariables


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
