"""Whether the servers have counted a worker's step: once, however many pushes it takes."""

from collections.abc import Iterator
from contextlib import contextmanager


class ServerStepCount:
    """The count of a worker's steps by the servers.

    Attributes:
        is_counted: Whether they have counted the step that is under way.
    """

    def __init__(self) -> None:
        self.is_counted = False
        self._is_part = False
        self._joins = False

    def begin(self) -> None:
        """Begin a step, which is to be counted, unless it is a part of one that is."""
        self.is_counted = self._joins or (self.is_counted and self._is_part)

    @property
    def increment(self) -> int:
        """Number that the next push of the step adds to the global step."""
        return 0 if self.is_counted else 1

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Count all that is pushed meanwhile, by steps and between them, as one step."""
        self.is_counted, self._is_part = False, True
        try:
            yield
        finally:
            self.is_counted = self._is_part = False

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Count pushes in this block as part of the previous step."""
        self._joins = True
        try:
            yield
        finally:
            self._joins = False
