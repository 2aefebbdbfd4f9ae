"""Calls of a function or method, which a test counts, refuses, or does something before."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest


class Calls:
    """Changes of functions and methods until the end of a test.

    A function of a module is named by its place, as in ``"ropewalk.core.x", "function"``. What is
    changed on a class gets the object as its first argument.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def noted(self, owner: Any, name: str) -> list[Any]:
        """The positional arguments of every call from now on; each goes through."""
        calls: list[Any] = []
        self.before(owner, name, lambda *arguments, **_: calls.append(arguments))
        return calls

    def before(self, owner: Any, name: str, do: Callable[..., object]) -> None:
        """Have every call begin with this, which gets its arguments and may raise."""
        owner = import_module(owner) if isinstance(owner, str) else owner
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            do(*arguments, **named)
            return real(*arguments, **named)

        self._patch.setattr(owner, name, call)

    def after(self, owner: Any, name: str, do: Callable[..., object]) -> None:
        """Have this follow every call; it gets the result, and the arguments. What it returns
        counts, unless it is None.
        """
        owner = import_module(owner) if isinstance(owner, str) else owner
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            other = do(result, *arguments, **named)
            return result if other is None else other

        self._patch.setattr(owner, name, call)

    def fail(self, owner: Any, name: str, *errors: BaseException) -> None:
        """Have every call raise this error; of several, each call raises the next, then none."""
        left = list(errors)

        def fail(*_: object, **__: object) -> None:
            if left:
                raise left[0] if len(errors) == 1 else left.pop(0)

        self.before(owner, name, fail)
