"""Standard input, output and errors of a command: closed ones, and those that cannot be written."""

import contextlib
import os
import sys
from collections.abc import Sequence

from ...core.errors import ConfigurationError, StorageError
from ...core.task import TaskId
from .plain import Display, PlainDisplay, echo


def prepare_standard_streams() -> None:
    """Have something open as each of them, before anything else is opened in its place.

    Otherwise the next file or pipe would get the number of a closed one, and what is said to the
    user, or read from nobody, would go there.

    Raises:
        ConfigurationError: Standard output is closed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:
        nothing = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        os.set_inheritable(number, True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if sys.stdout is None:
        raise ConfigurationError(
            "standard output is closed, and this command has something to say; where nobody is to "
            "read it, send it to /dev/null"
        )


def output_failure() -> StorageError | None:
    """Say why standard output cannot be written, as an error; None: it can.

    If it cannot, nothing is written to it any more.
    """
    try:
        sys.stdout.flush()
        os.write(1, b"\n")
    except OSError as error:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # what is still buffered goes there at exit
        os.close(nothing)
        return StorageError(
            f"standard output cannot be written: {error.strerror or error}; what this command had "
            "started was ended",
            path="standard output",
        )
    except ValueError:  # it was closed by somebody in this process
        return None
    return None


def say_error(text: str) -> None:
    """Tell the user, if standard error can be written."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            echo(f"ropewalk: {text}", err=True)
            sys.stderr.flush()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def choose_display(tasks: Sequence[TaskId], *, plain: bool) -> Display:
    """Choose where a launcher's output goes: colours and a progress bar on a terminal, else
    lines.
    """
    if plain or not sys.stdout.isatty():
        return PlainDisplay(tasks)
    from .display import RichDisplay

    return RichDisplay(tasks)
