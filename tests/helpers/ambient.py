"""The environment of a run of the tests: what a person has set for a terminal is forgotten.

Tests start processes that inherit it. On one machine ``PYTHONUNBUFFERED`` shows a test at once what
a program prints, on another the same line stays in a buffer; a locale, a width or a colour changes
what is compared. So each run begins as on a machine where none of it was ever set, and a program
whose output a test waits for flushes it.
"""

from collections.abc import MutableMapping

_NAMES = {
    # of Python: when and how a program's output arrives, and what it warns of
    "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "PYTHONWARNINGS",
    "PYTHONDEVMODE", "PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHONBREAKPOINT",
    # of the terminal, as rich and click read them
    "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "LINES",
    # of the person
    "LANG", "LANGUAGE", "TZ",
}  # fmt: skip
_BEGINNINGS = ("LC_",)


def forget(environment: MutableMapping[str, str]) -> None:
    """Remove what no test may depend on; what a test sets itself comes after."""
    for name in list(environment):
        if name in _NAMES or name.startswith(_BEGINNINGS):
            del environment[name]
