"""Running the user's program in this process, and how its end is reported."""

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ...core.errors import (
    ConfigurationError,
    FencedError,
    JobStoppedError,
    RetryableError,
    RopewalkError,
    TooManyWorkersError,
)
from ...core.exit_codes import ExitCode
from ...core.process.tracebacks import program_traceback
from ...core.states import Outcome
from ...core.terminal import terminal_text


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
    from ...core.process.replaced_errors import (
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
