"""Text of others for a terminal, and how objects show themselves."""

import re
from collections.abc import Mapping
from typing import Any

# -- Text of others for a terminal: what a terminal would obey is taken out, colours stay ------
# A program's output, names, numbers' labels, errors and logs come from other machines and people,
# and a terminal obeys what is in them: it can be made to write to the clipboard, to answer as if
# somebody had typed, to show lines that are not there. Of ECMA-48 only SGR passes, which are
# colours and how letters look. Whatever is printed or logged goes through :func:`terminal_text`,
# at the edge.


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_C1 = "\x80-\x9f"
_BIDI = "\u202a-\u202e\u2066-\u2069"  # would show a text in another order than it has
_SURROGATES = "\ud800-\udfff"  # cannot be encoded
_OBEYED = re.compile(
    # SGR, no longer than anybody needs.
    r"(?P<colour>\x1b\[[0-9;:]{0,40}m)"
    # Any other control sequence: where to write, what to wipe, modes, reports.
    r"|(?P<sequence>(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    # A string for the terminal, such as a title or the clipboard, with its end.
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n{_C1}]*(?:\x07|\x1b\\|\x9c)"
    # Any other escape sequence: reset, character sets.
    r"|\x1b[ -/]*[0-~])"
    # What is left of one that is not whole, and everything else that is no letter.
    rf"|[\x00-\x08\x0b-\x1f\x7f{_C1}{_BIDI}{_SURROGATES}]"
)
_RESET = "\x1b[0m"
_RESETS = ("\x1b[m", _RESET)
_LINE_ENDS = re.compile("[\n\u2028\u2029]")


def terminal_text(text: str, *, colours: bool = False) -> str:
    r"""Remove from a text what a terminal obeys: of controls only ``\n`` and ``\t`` are left.

    Whole sequences are taken out, so that a progress bar reads well without them. Other controls,
    overrides of the direction of writing, and what cannot be encoded are replaced by U+FFFD.

    Args:
        text: Text from anybody.
        colours: SGR sequences stay; they end with the text.
    """

    def allowed(match: re.Match[str]) -> str:
        if match["colour"]:
            return match["colour"] if colours else ""
        return "" if match["sequence"] else REPLACEMENT

    clean = _OBEYED.sub(allowed, text)
    if not colours:
        return clean
    last = clean.rfind("\x1b")  # of a whole SGR sequence: nothing else has an escape any more
    return clean if last < 0 or clean.startswith(_RESETS, last) else clean + _RESET


def terminal_line(text: str, *, colours: bool = False) -> str:
    """Clean a text as :func:`terminal_text` does, into one line: a name or a line can make no
    other.
    """
    return terminal_text(_LINE_ENDS.sub(REPLACEMENT, text), colours=colours)


# -- The display of an object: in one line, and as a small table in a notebook -----------------
# ::
#
#     >>> strategy
#     <ParameterServerStrategy task='chief:0' cluster={'chief': 1, 'ps': 2} replicas=['CPU:0']>

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
