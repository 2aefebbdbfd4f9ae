"""Whether the servers have counted a worker's step: once, however many pushes it takes."""

from collections.abc import Iterator
from contextlib import contextmanager


class ServerStepCount:
    """What of a worker's steps the servers have counted.

    Attributes:
        is_counted: Whether they have counted the step that is under way.
    """

    def __init__(self) -> None:
        self.is_counted = False
        self._is_part = False
        self._joins = False

    def begin(self) -> None:
        """A step begins: it is to be counted, unless it is a part of one that is."""
        self.is_counted = self._joins or (self.is_counted and self._is_part)

    @property
    def increment(self) -> int:
        """What the next push of the step adds to the global step."""
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
        """Count nothing of what is pushed meanwhile: it belongs to the step before."""
        self._joins = True
        try:
            yield
        finally:
            self._joins = False
