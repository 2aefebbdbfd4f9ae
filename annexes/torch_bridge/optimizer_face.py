"""PyTorch: what a shared optimizer is to the program, which knows an ``Optimizer`` of torch.

It has the groups and the state of the one that it shares. What would change one worker's copy
alone, or a state that the servers have, is an error that says what to do instead.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from ...core.errors import ConfigurationError
from ...training.extras import require
from .rules import TorchRules
from .server_state import StateOnServers, StepsOfState

torch: Any = require("torch", "torch")


class OptimizerFace(torch.optim.Optimizer):  # type: ignore[misc]
    """The state, groups and state dicts of an optimizer that is shared.

    Attributes:
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
    """

    worker_reason: str | None
    _optimizer: Any  # that is shared
    _complete: bool  # whether it has its groups
    _rules: TorchRules
    _steps_of_state: StepsOfState

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what an optimizer has beside the attributes of ``torch.optim.Optimizer``.

        Raises:
            AttributeError: Always.
        """
        own = self.__dict__.get("_optimizer")
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if hasattr(own, name):
            kind = type(own).__name__
            message += (
                f", which {kind} has. What is shared is the work of its step: put what else "
                f"changes parameters into a step(closure), or ask the {kind} that was wrapped"
            )
        raise AttributeError(message)

    @property
    def _kind(self) -> str:
        return type(self._optimizer).__name__

    @property
    def state(self) -> Any:
        """State of the optimizer; of one that runs on the servers none, and changes are an
        error.
        """
        return self._optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        if self._complete:  # else torch begins one
            if isinstance(self.state, StateOnServers):
                self.state.clear()  # refuses
            self._optimizer.state = state

    def _show_no_state(self) -> None:
        if self.worker_reason is None and self._rules.have_state:
            self._optimizer.state = StateOnServers(self._kind)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the servers are told of all parameters at once.

        Raises:
            ConfigurationError: Always.
        """
        if self._complete:
            raise ConfigurationError(
                "a DistributedOptimizer takes no further parameters: add the group before the "
                "optimizer is wrapped, with requires_grad=False until it is to train; for "
                "parameters that are not there yet, wrap a new optimizer later"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """Refused: a copy would train parameters that the job does not have.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"a {type(self).__name__} cannot be copied or pickled, since its parameters are a "
            "job's; copy the module, make an optimizer of the copy's parameters, and wrap that, "
            "or save state_dict()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's groups, and its state where it runs on this worker.

        What the servers keep is in the job's checkpoints. Its place has the number of steps that
        have made it, by which ``load_state_dict`` knows that it is missing.
        """
        own: dict[str, Any] = self._optimizer.state_dict()
        if self.worker_reason is not None:
            return own
        return own | {"state": {}} | self._steps_of_state.entries()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take groups, and the state of an optimizer that runs on this worker.

        Raises:
            ConfigurationError: It has a state, and the optimizer runs on the servers; or it lacks
                the state of other steps than those that the servers have.
        """
        self._require_state(state_dict)
        self._optimizer.load_state_dict(state_dict)
        self.param_groups = self._optimizer.param_groups
        self._show_no_state()

    def _require_state(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse a state that cannot be loaded, or is missing."""
        if self.worker_reason is None and state_dict["state"]:
            raise ConfigurationError(
                f"this state_dict has the state of {self._kind} for {len(state_dict['state'])} "
                "parameters, which is on the servers here and comes with the job's checkpoints; "
                "begin the job with it by rw.training.torch.write_checkpoint, or keep the "
                'optimizer on the worker with deltas="always"'
            )
        self._steps_of_state.require(state_dict)
