"""Changes of a program by hand in a model's arrays, between two steps, where others have them."""

from collections.abc import Mapping

from ..core.arrays.dtypes import Array
from ..core.errors import ConfigurationError
from .array_store import ArrayStore
from .in_sync import copy_counts


class ProgramChanges:
    """Gives arrays that the program has clamped, loaded or replaced to all workers.

    In sync every worker has to make the same change. Among asynchronous workers the chief's changes
    count, and those of another worker are overwritten once, as the first values are.

    Args:
        store: Store of the arrays.
        example: Example of such a program, for messages: the rest of a sentence after "as".
        remedy: Advice for messages: sentences without the last stop.

    Attributes:
        count: Whether this worker's changes count.
    """

    def __init__(self, store: ArrayStore, *, example: str, remedy: str) -> None:
        self._store, self._example, self._remedy = store, example, remedy
        self.count = copy_counts(store.strategy)
        self._overwritten = 0  # before steps in turn

    def give(self, changed: Mapping[str, Array]) -> bool:
        """Have the store take changes, if they count.

        Args:
            changed: New values, by name.

        Returns:
            Whether it has taken something.
        """
        if not (changed and self.count):
            return False
        self._store.assign(changed)
        return True

    def give_before_step(self, changed: Mapping[str, Array]) -> bool:
        """Give changes as :meth:`give` does, before each step, also with no changes.

        Raises:
            ConfigurationError: Another asynchronous worker than the chief has changed arrays before
                two steps in turn.
        """
        if self.count or not changed:
            self._overwritten = 0
            return bool(changed) and self.give(changed)
        self._overwritten += 1
        if self._overwritten > 1:
            name = next(iter(changed))
            raise ConfigurationError(
                f"this program changes {name!r} between steps, as {self._example}, on a worker "
                "that is not the chief, and of asynchronous workers the chief's changes alone "
                f"count. {self._remedy}",
                variable=name,
            )
        return False
