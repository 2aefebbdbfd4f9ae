"""``optimizer.state`` of an optimizer of PyTorch whose state is on the servers."""

from typing import Any, NoReturn

from ..core.errors import ConfigurationError


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
