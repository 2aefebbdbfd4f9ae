"""The user's program in this process: how it runs, how it ends, and what is reported."""

import contextlib
import ctypes
import dis
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ...core.errors import (
    ConfigurationError,
    FencedError,
    JobStoppedError,
    RetryableError,
    RopewalkError,
    TooManyWorkersError,
)
from ...core.exit_codes import ExitCode
from ...core.outside_text import open_plain
from ...core.process.threads import main_thread_frame
from ...core.process.tracebacks import program_traceback, shows_uncaught
from ...core.settings import read_environment, take_environment
from ...core.task import Outcome
from ...core.terminal import terminal_text

# -- Running the user's program in this process, and how its end is reported -------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a program.

    Attributes:
        outcome: Reported to the chief.
        code: Exit code of the process, if nothing else goes wrong.
        message: Message of one line; empty on success.
        shown: The user has seen the message, at the end of a traceback.
    """

    outcome: Outcome
    code: int
    message: str = ""
    shown: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: a file, or a module as in ``python -m``.

    Attributes:
        path: The file, absolute; a module's as far as it is known.
        module: The module's name; empty: the file is run.
        function: Name of a function of the module, which is called without arguments; empty: the
            module is run.
    """

    path: Path
    module: str = ""
    function: str = ""

    @property
    def command(self) -> list[str]:
        """The arguments of ``ropewalk run`` that name the program."""
        if self.function:
            return [f"{self.module}:{self.function}"]
        return ["-m", self.module] if self.module else [str(self.path)]


def find_program(name: str, *, module: bool = False) -> Program:
    """Find the program that a user named.

    Args:
        name: A file; or ``package.module:function``; or with ``module`` the dotted name of a module
            or package. Modules are looked for in the working directory first.
        module: The name is that of a module, as with ``python -m``.

    Raises:
        ConfigurationError: There is no such program.
    """
    if module:
        return _find_module(name)
    path = Path(name)
    if path.is_file():
        return Program(path.resolve())
    named, _, function = name.partition(":")
    if function.isidentifier() and all(part.isidentifier() for part in named.split(".")):
        return replace(_find_module(named), function=function)
    kind = "is a folder, not a program" if path.is_dir() else "does not exist"
    raise ConfigurationError(
        f"{name} {kind} (looked in {Path.cwd()}); give the path of a Python file, or -m and the "
        "name of a module",
        script=name,
    )


def _find_module(name: str) -> Program:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)  # as `python -m` does
    spec: ModuleSpec | None = None
    for count, _ in enumerate(parts := name.split("."), 1):
        part = ".".join(parts[:count])
        try:
            if spec is None:
                spec = importlib.util.find_spec(part)
            else:  # by the files alone: nothing of the user's is imported here
                spec = PathFinder.find_spec(part, spec.submodule_search_locations)
        except (ImportError, ValueError):
            spec = None
        if spec is None or (count < len(parts) and not spec.submodule_search_locations):
            raise ConfigurationError(
                f"there is no module {part!r} (looked in {here} and where Python looks); give the "
                "name as in `python -m`, from the folder that holds the package",
                script=name,
            )
    if spec is not None and spec.submodule_search_locations is not None:
        main = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
        if main is None:
            raise ConfigurationError(
                f"{name!r} is a package without __main__.py; name one of its modules", script=name
            )
        spec = main
    return Program(Path(spec.origin if spec and spec.origin else name), name)


def run_program(
    program: Program, arguments: Sequence[str], show: Callable[[str], None] | None = None
) -> Ending:
    """Run a program as ``python PROGRAM ARGUMENTS`` would, and return how it ended.

    Args:
        program: The program.
        arguments: Arguments of the program, its ``sys.argv[1:]``.
        show: Called with the text of an uncaught exception; None: it goes to stderr.
    """
    sys.argv = [str(program.path), *arguments]
    try:
        if program.function:
            _call(program)
        elif program.module:
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(program.path.parent))
            runpy.run_path(str(program.path), run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - every way the program can end
        return ending_of(error, program=str(program.path), show=show)
    finally:
        sys.stdout.flush()
    return Ending(Outcome.DONE, ExitCode.DONE)


def _call(program: Program) -> None:
    function = getattr(importlib.import_module(program.module), program.function, None)
    if not callable(function):
        raise ConfigurationError(
            f"{program.module} has no function {program.function!r}", script=program.module
        )
    function()


def ending_of(
    error: BaseException, *, program: str = "", show: Callable[[str], None] | None = None
) -> Ending:
    """Describe an exception that left ``program`` (a file) as an ending.

    Its text goes to ``show``, or to stderr: a traceback, unless the program was asked to end or
    ends because of another task. A framework's error that replaced one of ours counts as ours.
    """
    from ...core.process.tracebacks import (
        first_error,  # a launcher, which loads this, needs it not
    )

    error = first_error(error)
    if isinstance(error, SystemExit):
        return exit_ending(error.code)
    if isinstance(error, KeyboardInterrupt):
        return Ending(Outcome.LEFT, ExitCode.DRAINED, "interrupted")
    if isinstance(error, JobStoppedError):
        return Ending(Outcome.LEFT, ExitCode.DRAINED, error.message)
    if isinstance(error, RetryableError | FencedError | TooManyWorkersError):
        return Ending(Outcome.LEFT, error.exit_code, error.message)
    (show or show_error)(program_traceback(error, program))
    code = error.exit_code if isinstance(error, RopewalkError) else ExitCode.PROGRAM_FAILED
    text = str(error)
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Ending(Outcome.FAILED, code, message, shown=True)


def exit_ending(code: object) -> Ending:
    """Describe the end of a program that called ``sys.exit(code)``."""
    if code is None or code == 0:
        return Ending(Outcome.DONE, ExitCode.DONE)
    if isinstance(code, int):
        return Ending(Outcome.FAILED, code & 0xFF or 1, f"the program exited with {code}")
    print(code, file=sys.stderr)  # noqa: T201 - as Python does for sys.exit("…")
    return Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, str(code))


def show_error(text: str) -> None:
    """Write a traceback to stderr."""
    sys.stderr.write(terminal_text(text, colours=True))
    sys.stderr.flush()


# -- End of the main program of this process, for what runs when the interpreter exits ---------
# ``ropewalk run`` calls the program and sees it return or raise. Python itself calls a program
# that was started by plain ``python``, and does not tell functions that run at exit why. Three
# things do: an uncaught exception goes to ``sys.excepthook``; ``sys.exit`` is a function that can
# be wrapped; and the program's outermost frame stops at the instruction with which it ended.

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


# -- The report of a task that fails to its launcher: the traceback or message, in a file ------
# A mistake in a program fails every task alike. The launcher shows it once, so tasks that have a
# launcher do not print it. The parent of a task in a container needs a sentence for the status of
# the pod; such a task prints its error as well. The idea, and that it is a file, is that of
# torch.distributed.elastic's ``TORCHELASTIC_ERROR_FILE``.

ERROR_FILE = "ROPEWALK_ERROR_FILE"  # set by the launcher, for one task
ERROR_COPY = "ROPEWALK_ERROR_COPY"  # set by the parent of a task in a container
_MAX_BYTES = 64 * 1024


class ErrorReport:
    """A way for the text of an error: to the launcher, or to stderr without one.

    Args:
        path: The launcher's file; empty: there is none.
        is_copy: Whether the error is printed as well.
    """

    def __init__(self, path: str, *, is_copy: bool = False) -> None:
        self._path = path
        self._is_copy = is_copy

    @property
    def has_parent(self) -> bool:
        """Whether it is for the parent of a task in a container."""
        return self._is_copy and bool(self._path)

    def write(self, text: str) -> bool:
        """Hand a text to the launcher; returns whether it is the launcher that prints it."""
        if not self._path:
            return False
        with contextlib.suppress(OSError):
            Path(self._path).write_text(text[-_MAX_BYTES:], errors="replace")
            return not self._is_copy
        return False

    def show(self, text: str) -> None:
        """Write a text for the launcher; print it if there is none."""
        if not self.write(text):
            show_error(text)


def take_error_report() -> ErrorReport:
    """Take over the report of this process, as its environment says, for which it is removed
    there.
    """
    copy, path = take_environment(ERROR_COPY), take_environment(ERROR_FILE)
    return ErrorReport(path or copy, is_copy=not path)


def has_parent() -> bool:
    """Return whether this process is the task of a container whose parent process supervises it."""
    return bool(read_environment(ERROR_COPY))


def read_report(path: Path) -> str:
    """Read the text of a task's report; empty if there is none."""
    try:
        with open_plain(path) as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
