"""End of the main program of this process, for what runs when the interpreter exits.

``ropewalk run`` calls the program and sees it return or raise. Python itself calls a program that
was started by plain ``python``, and does not tell functions that run at exit why. Three things
do: an uncaught exception goes to ``sys.excepthook``; ``sys.exit`` is a function that can be
wrapped; and the program's outermost frame stops at the instruction with which it ended.
"""

import ctypes
import dis
import sys
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ...core.errors import RopewalkError
from ...core.exit_codes import ExitCode
from ...core.process.frames import main_thread_frame
from ...core.process.tracebacks import shows_uncaught
from ...core.states import Outcome
from .program import Ending, ending_of, exit_ending

# `raise SystemExit(main())` at top level ends a program as returning does; its code is not known.
_LAST_INSTRUCTIONS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS")


class ProgramEnd:
    """Notes how the main program ends. Make one per process."""

    def __init__(self) -> None:
        self._frame = _main_frame()
        self._ending: Ending | None = None
        self._exit_code: list[Any] = []  # of the last sys.exit, which may have been caught
        self._own_hook = not shows_uncaught()
        self._excepthook, self._exit = sys.excepthook, sys.exit
        sys.excepthook = self._uncaught
        sys.exit = self._noted_exit

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        own_hook = self._own_hook and not isinstance(error, RopewalkError)
        if own_hook:
            self._excepthook(kind, error, trace)  # rich's, or whatever the program has set
        program = self._frame.f_code.co_filename
        show = (lambda _: None) if own_hook else None
        self._ending = ending_of(error, program=program, show=show)

    def _noted_exit(self, code: Any = None, /) -> NoReturn:
        self._exit_code = [code]
        self._exit(code)

    def ending(self) -> Ending:
        """Find out how the program ended. Call when the interpreter exits."""
        if self._ending is not None:
            return self._ending
        frame = self._frame
        last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if last in _LAST_INSTRUCTIONS:
            return Ending(Outcome.DONE, ExitCode.DONE)
        if self._exit_code:
            [code] = self._exit_code
            # Text was printed by Python already.
            return exit_ending(code if code is None or isinstance(code, int) else 1)
        message = "the program raised SystemExit; its code is known only from sys.exit(CODE)"
        return Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, message)


def _main_frame() -> FrameType:
    """Find the outermost frame of the program."""
    frame = main_thread_frame()
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    names = sys.modules["__main__"].__dict__
    of_program = [frame for frame in frames if frame.f_globals is names]
    return (of_program or frames)[-1]


def set_exit_code(code: int) -> None:
    """Let this process end with ``code``, though the interpreter is exiting already.

    Python has settled its own code by then. All of its work at exit is still done; then, in place
    of its last step, libc calls ``_exit``.
    """
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc._exit, ctypes.c_void_p(code), None)
    libc.__cxa_atexit(libc.fflush, None, None)  # called before: the last one is the first
