"""Runs rows, each in a process with a limit of its own.

A row that hangs costs its limit only, and a GPU that it has ruined for its process ends with it.
Rows that measure run alone, after all others.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from .rows import Machine, Result, Row, Verdict, result_of, variables_of, why_skipped

ROOT = Path(__file__).parents[2]
_LAST_LINES = 4


class Runner:
    """Runs rows on a machine, within a time for all of them.

    Args:
        machine: Means that they have here.
        environment: Variables of their processes.
        budget_s: Time for all rows; those that it does not reach are skipped. Unit: seconds.
        command: Looks at a row, given its name and a file for the result.
    """

    def __init__(
        self,
        machine: Machine,
        environment: Mapping[str, str],
        budget_s: float,
        command: Sequence[str] = (sys.executable, "-m", "tools.gpu_check.looking"),
    ) -> None:
        self._machine = machine
        self._environment = dict(environment)
        self._until = time.monotonic() + budget_s
        self._budget_s = budget_s
        self._command = command
        self._live: set[subprocess.Popen[bytes]] = set()

    def run(self, rows: Sequence[Row], beside: int, tell: Callable[[Result], None]) -> list[Result]:
        """Run rows, ``beside`` each other where that changes nothing; their results in order.

        Args:
            rows: Rows to run.
            beside: Number of rows that run at once.
            tell: Called with each result as it comes.
        """
        found: dict[str, Result] = {}
        pool = ThreadPoolExecutor(beside)
        try:
            running = [pool.submit(self.result, each) for each in rows if not each.runs_alone]
            for each in as_completed(running):
                tell(each.result())
                found[each.result().row] = each.result()
            for row in rows:
                if row.runs_alone:
                    found[row.name] = self.result(row)
                    tell(found[row.name])
        finally:  # after Ctrl-C rows may run
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self._live):
                _kill(process)
        return [found[row.name] for row in rows]

    def result(self, row: Row) -> Result:
        """Run a row, or say why not."""
        if why := why_skipped(row, self._machine):
            return result_of(row, Verdict.SKIP, why)
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            return result_of(row, Verdict.SKIP, f"no time is left of {self._budget_s:.0f} s")
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            return self._looked(row, Path(folder), min(row.limit_s, left_s))

    def _looked(self, row: Row, folder: Path, limit_s: float) -> Result:
        start, answer, output = time.monotonic(), folder / "result.json", folder / "output.txt"
        with output.open("wb") as stream:
            code = self._ended(row, answer, stream.fileno(), limit_s)
        if code == 0 and answer.exists():
            said = json.loads(answer.read_text())
            return result_of(row, Verdict(said["verdict"]), said["got"], said["seconds"])
        lines = output.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        how = f"no end within {limit_s:.0f} s" if code is None else f"ended with {_name(code)}"
        got = "; ".join([how, *(line.strip() for line in lines)])
        return result_of(row, Verdict.FAIL, got[:400], time.monotonic() - start)

    def _ended(self, row: Row, answer: Path, output: int, limit_s: float) -> int | None:
        """Run a row's process to its end, and return its exit code; None: it took too long.

        Nothing is left of it, and of its children.
        """
        process = subprocess.Popen(
            [*self._command, row.name, str(answer)],
            cwd=ROOT,
            env={**os.environ, **self._environment, **variables_of(row, self._machine)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._live.add(process)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)
            self._live.discard(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its children: those that it left, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
