"""Variables made in ``run``: allowed in its first step, an error if every step makes them anew.

A layer may make its variables when it is first called, so the first step of a function may. One
that is made in each step and forgotten begins with its initial value each time: nothing is learned,
and on parameter servers memory grows. ``tf.function`` refuses that, too ("only supports singleton
tf.Variables created on the first call").
"""

import weakref
from types import CodeType
from typing import Any

_Made = dict[tuple[str, str], weakref.ref[Any]]


class Creations:
    """The variables that the last step of each function made, by name and line. Used by one thread
    at a time.
    """

    def __init__(self) -> None:
        self._made: dict[object, _Made] = {}  # only of functions whose last step made something
        self._before: _Made = {}
        self._function: object = None

    def begin(self, code: object) -> None:
        """Begin a step of the function with this code, or of an object that is called."""
        self._function = code if isinstance(code, CodeType) else type(code)
        self._before = self._made.pop(self._function, {}) if self._made else {}

    def check(self, name: str, where: str) -> None:
        """Refuse a variable that the step before made on the same line, and that is gone.

        Raises:
            ValueError: It did.
        """
        earlier = self._before.get((name, where))
        if earlier is not None and earlier() is None:
            raise ValueError(
                f"{where} creates variable {name!r} in every strategy.run: each step begins with a "
                "new one, and what the last one has learned is lost. Create it once, before the "
                "first step and in `with strategy.scope():`, or keep the first one (as an "
                "attribute, say) and use it again"
            )

    def note(self, name: str, where: str, variable: Any) -> None:
        """Note that this step made a variable."""
        self._made.setdefault(self._function, {})[name, where] = weakref.ref(variable)
