"""The display of an object: in one line, and as a small table in a notebook.

::

    >>> strategy
    <ParameterServerStrategy task='chief:0' cluster={'chief': 1, 'ps': 2} replicas=['CPU:0']>
"""

from collections.abc import Mapping
from typing import Any

_MAX_CHARS = 200  # of one value


class Shown:
    """Says its name and what :meth:`_shown` gives. Looking at an object never waits or fails."""

    def _shown(self) -> Mapping[str, Any]:
        """Return what the object holds, by name: small, and known here without asking anybody."""
        return {}

    def _parts(self) -> Mapping[str, Any]:
        try:
            return self._shown()
        except AttributeError:  # its constructor has not come to its end
            return {}

    def __repr__(self) -> str:
        parts = [f"{name}={_short(value)}" for name, value in self._parts().items()]
        return f"<{' '.join([type(self).__name__, *parts])}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(_short(value))}</td></tr>"
            for name, value in self._parts().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"


def _short(value: Any) -> str:
    return one_line(repr(value))


def one_line(text: str) -> str:
    """Shorten the text of a value to one line, cut if it is long."""
    text = " ".join(text.split())  # an array has lines
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Write a number and what it counts: ``1 cut``, ``2 cuts``, ``0 cuts``.

    Args:
        count: Number of things.
        noun: Word for one thing.
        plural: Word for several things; empty: the noun with an s.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
