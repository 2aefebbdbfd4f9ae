"""State that an optimizer of PyTorch shows where it is on the servers."""

import uuid
from collections.abc import Mapping
from itertools import count
from typing import Any, NoReturn

from ...core.errors import ConfigurationError

_STEPS = "ropewalk_steps"
_OPTIMIZER = "ropewalk_optimizer"
_PROCESS = uuid.uuid4().hex
_numbers = count()


class StepsOfState:
    """The stand-in of the state in a ``state_dict``: whose it was, and after how many steps.

    Args:
        kind: Kind of the optimizer, for messages.
        resumed: Whether the servers may have a state of an earlier run.

    Attributes:
        made: Steps of this worker that have made what the servers have.
    """

    def __init__(self, kind: str, *, resumed: bool) -> None:
        self._kind, self._resumed = kind, resumed
        self._optimizer = f"{_PROCESS}/{next(_numbers)}"
        self.made = 0

    def entries(self) -> dict[str, Any]:
        """Make what to put into a ``state_dict``; nothing as long as there is no state."""
        return {_STEPS: self.made, _OPTIMIZER: self._optimizer} if self.made else {}

    def require(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse a ``state_dict`` of another state than the one that the servers have.

        That of an earlier process is taken where the servers may have its state from a checkpoint.

        Args:
            state_dict: State that a program loads.

        Raises:
            ConfigurationError: It lacks the state of other steps, or of another optimizer.
        """
        wanted, of = state_dict.get(_STEPS, 0), str(state_dict.get(_OPTIMIZER, ""))
        another = bool(wanted) and of != self._optimizer and of.startswith(_PROCESS)
        if another or (wanted != self.made and (self.made or not self._resumed)):
            whose = " of another optimizer" if another else ""
            raise ConfigurationError(
                f"this state_dict{whose} has the groups of {self._kind} alone, since the servers "
                f"had its state after {wanted} steps; they have that of {self.made} now, and "
                "loading it would not bring it back. Keep the optimizer on the worker with "
                'deltas="always", whose state_dict has its state, or resume the job from its '
                "checkpoints (model_dir)"
            )


class StateOnServers(dict[Any, Any]):
    """An empty state that raises an error where a program asks for moments or changes them.

    Args:
        kind: Kind of the optimizer, for messages.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, key: Any) -> "StateOnServers":
        # Of a parameter there is nothing; an entry of one was asked for by its name.
        return self._refuse() if isinstance(key, str) else StateOnServers(self._kind)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"the state of {self._kind} is on the servers, so optimizer.state has none of it, and "
            'changing it changes nothing. Keep the optimizer on the worker with deltas="always", '
            "whose state can be read, cleared and replaced",
            optimizer=self._kind,
        )

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
