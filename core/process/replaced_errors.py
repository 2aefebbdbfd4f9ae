"""Errors of ours in whose place a framework raises its own.

A graph of TensorFlow and a function that JAX compiles call Python back, and an error in there
reaches the program as the framework's (``JaxRuntimeError``, ``InvalidArgumentError``), with the
text of ours in its message. Whether the job was stopped or the model has diverged must not be lost
by that: the process ends with the exit code of the first error. So callbacks note what they raise.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import RopewalkError

_noted: list[RopewalkError] = []  # at most one: the last


@contextmanager
def noting_errors() -> Iterator[None]:
    """Note an error of ours that leaves a callback."""
    try:
        yield
    except RopewalkError as error:
        _noted[:] = [error]
        raise


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the error that a callback has raised, around a call of a framework."""
    try:
        yield
    except Exception as error:
        first = first_error(error)
        if first is error:
            raise
        raise first from error


def first_error(error: BaseException) -> BaseException:
    """Find the error of ours that a framework has replaced by ``error``; else return that itself.

    It has the traceback of ``error``, which says where in the program it came out.
    """
    if isinstance(error, RopewalkError) or not isinstance(error, Exception):
        return error
    text = str(error)
    for noted in _noted:
        if noted.message and noted.message in text:
            return noted.with_traceback(error.__traceback__)
    return error
