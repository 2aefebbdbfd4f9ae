"""Tracebacks for the author of a program, and errors that frameworks replace by their own."""

import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType

from ..errors import RopewalkError
from ..terminal import counted, terminal_text

# -- Tracebacks as the author of a program wants them: the program's frames, and ours folded ---
# ::
#
# Traceback (most recent call last): File "train.py", line 21, in <module> loss =
# strategy.run(step, args=(batch,)) … 6 calls inside ropewalk File "train.py", line 14, in step
# error = features @ w.read_value() - targets ValueError: matmul: …
#
# Between ``model.fit`` of a program and its own layers or callbacks lie frames of Keras, which
# Keras itself leaves out unless it is told not to (``keras.config.disable_traceback_filtering``):
# they are shown, though a frame of Ropewalk called them.


_OURS = str(Path(__file__).parents[2]) + "/"  # the package; its rooms are folders or links here
_LIBRARIES = tuple(  # Python's own, and what is installed
    {
        f"{path}/"
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
_KERAS = "/keras/"  # a folder above its modules, wherever it is installed
_MAX_FRAMES = 8


def fold_uncaught() -> None:
    """Show an error that ends the program in this way from now on, unless another hook shows it:
    rich, a debugger, a notebook.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def shows_uncaught() -> bool:
    """Return whether Python or :func:`fold_uncaught` shows such an error, and no other hook."""
    return sys.excepthook in (sys.__excepthook__, _show)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    shown = program_traceback(error.with_traceback(trace), program)
    sys.stderr.write(terminal_text(shown, colours=True))
    sys.stderr.flush()


class _FoldedStack(traceback.StackSummary):
    """Frames of which :meth:`format` shows some, and counts the others."""

    def format(self, **_: object) -> list[str]:
        # Never StackSummary's own, whose result for a repeated frame is not a frame's.
        lines: list[str] = []
        for kind, pairs in groupby(zip(_kinds(self), self, strict=True), key=itemgetter(0)):
            group = [frame for _, frame in pairs]
            if kind == "python":
                continue  # runpy and the import system, of which Python shows nothing either
            if kind == "ropewalk":
                lines.append(f"  … {_calls(len(group))} inside ropewalk\n")
                continue
            left_out = len(group) - _MAX_FRAMES
            if left_out > 0:
                lines += traceback.format_list(group[: _MAX_FRAMES // 2])
                lines.append(f"  … {_calls(left_out)} more\n")
                group = group[-(_MAX_FRAMES // 2) :]
            lines += traceback.format_list(group)
        return lines


def _calls(count: int) -> str:
    return counted(count, "call")


def _kinds(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    """Tell for each frame to which code it belongs. A library that Ropewalk called is "ropewalk",
    too, until the program is called back; one that the program called is the program's. Keras is
    called on behalf of the program: it is "keras", with the libraries that it calls.
    """
    kinds: list[str] = []
    for frame in frames:
        name, before = frame.filename, kinds[-1] if kinds else ""
        if name.startswith("<frozen "):
            kinds.append(before if before in ("ropewalk", "keras") else "python")
        elif name.startswith(_OURS):
            kinds.append("ropewalk")
        elif before in ("ropewalk", "keras") and _is_library(name):
            kinds.append("keras" if _KERAS in name else before)
        else:
            kinds.append("program")
    return kinds


def _is_library(name: str) -> bool:
    """Return whether a file is a library's, be it in another folder of packages than this Python's
    own.
    """
    return name.startswith(_LIBRARIES) or "/site-packages/" in name or "/dist-packages/" in name


def program_traceback(error: BaseException, program: str) -> str:
    """Format the traceback of an exception that left ``program``, from the program's first frame
    on.

    An error of Ropewalk says what to do by itself: its frames below the program's last are left
    out, and so is the exception it was made from.

    Args:
        error: The exception.
        program: The program's file, as its frames name it.
    """
    ours = isinstance(error, RopewalkError)
    shown = traceback.TracebackException.from_exception(error)
    for part in _chained(shown):
        frames = list(part.stack)
        # None is the program's if it could not even be read.
        first = next((i for i, frame in enumerate(frames) if frame.filename == program), None)
        frames = frames[first:] if first is not None else _not_ours(frames)
        if ours:
            kinds = _kinds(frames)
            while kinds and kinds[-1] != "program":
                kinds.pop()
            frames = frames[: len(kinds)]
        part.stack = _FoldedStack(frames)
    return "".join(shown.format(chain=not ours))


def _not_ours(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    shown = ("program", "keras")
    return [frame for frame, kind in zip(frames, _kinds(frames), strict=True) if kind in shown]


def _chained(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting = [shown]
    while waiting:
        part = waiting.pop()
        yield part
        parts = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or [])]
        waiting += [other for other in parts if other is not None]


# -- Errors of ours in whose place a framework raises its own ----------------------------------
# A graph of TensorFlow and a function that JAX compiles call Python back, and an error in there
# reaches the program as the framework's (``JaxRuntimeError``, ``InvalidArgumentError``), with the
# text of ours in its message. Whether the job was stopped or the model has diverged must not be
# lost by that: the process ends with the exit code of the first error. So callbacks note what they
# raise.

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
