"""Running the user's program in this process, and how its end is reported."""

import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigurationError, JobStoppedError, RetryableError, WindlassError
from ..core.exit_codes import ExitCode
from ..core.states import Outcome


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended.

    Attributes:
        outcome: Reported to the chief.
        code: Exit code of the process, if nothing else goes wrong.
        message: One line; empty on success.
    """

    outcome: Outcome
    code: int
    message: str = ""


def find_script(script: str) -> Path:
    """The script as a file.

    Raises:
        ConfigurationError: There is none.
    """
    path = Path(script)
    if path.is_file():
        return path.resolve()
    kind = "is a folder, not a program" if path.is_dir() else "does not exist"
    raise ConfigurationError(
        f"{script} {kind} (looked in {Path.cwd()}); give the path of a Python file", script=script
    )


def run_script(path: Path, arguments: Sequence[str]) -> Ending:
    """Run a Python file as ``python FILE ARGUMENTS`` would, and return how it ended.

    The traceback of an uncaught exception goes to stderr, without Windlass's frames.
    """
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - every way the program can end
        return ending_of(error, program=str(path))
    finally:
        sys.stdout.flush()
    return Ending(Outcome.DONE, ExitCode.DONE)


def ending_of(error: BaseException, *, program: str = "") -> Ending:
    """The ending for an exception that left ``program`` (a file)."""
    if isinstance(error, SystemExit):
        return _exit_ending(error)
    if isinstance(error, KeyboardInterrupt):
        return Ending(Outcome.LEFT, ExitCode.DRAINED, "interrupted")
    if isinstance(error, JobStoppedError):
        return Ending(Outcome.LEFT, ExitCode.DRAINED, error.message)
    if isinstance(error, RetryableError):
        return Ending(Outcome.LEFT, error.exit_code, error.message)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, WindlassError):
        # The message says what to do; a traceback through Windlass would not help.
        _print_traceback(error, program, only_program=True)
        return Ending(Outcome.FAILED, error.exit_code, message)
    _print_traceback(error, program, only_program=False)
    return Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, message)


def _exit_ending(error: SystemExit) -> Ending:
    if error.code in (None, 0):
        return Ending(Outcome.DONE, ExitCode.DONE)
    if isinstance(error.code, int):
        return Ending(
            Outcome.FAILED, error.code & 0xFF or 1, f"the program exited with {error.code}"
        )
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python does for sys.exit("…")
    return Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, str(error.code))


def _print_traceback(error: BaseException, program: str, *, only_program: bool) -> None:
    # The program's own frames: from its file on, with `only_program` down to its call of
    # Windlass.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != program:
        trace = trace.tb_next
    if trace is None and not (isinstance(error, SyntaxError) and error.filename == program):
        trace = error.__traceback__
    shown = traceback.TracebackException.from_exception(error.with_traceback(trace))
    if only_program:
        last = max((i for i, f in enumerate(shown.stack) if f.filename == program), default=None)
        if last is not None:
            shown.stack = traceback.StackSummary.from_list(shown.stack[: last + 1])
    # Chained exceptions are shown for the program's errors only.
    sys.stderr.write("".join(shown.format(chain=not only_program)))
    sys.stderr.flush()
