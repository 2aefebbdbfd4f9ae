"""A job of ``ropewalk local`` whose tasks a test ends, as processes of its launcher."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from ropewalk.client.chief.calls import ChiefClient, JobStatus
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import RopewalkError
from ropewalk.core.settings import Settings

from . import processes
from .waiting import scaled, wait_until

LivePids = Callable[[], dict[int, dict[str, str]]]

# Python runs it before anything else: a chief that is started while there is this file is away, as
# one whose imports or whose machine take long.
_AWAY = """
import json, os, pathlib, time
task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
until = time.monotonic() + 600
while task.get("type") == "chief" and pathlib.Path("away").exists() and time.monotonic() < until:
    time.sleep(0.02)
"""


class LocalRun:
    """A local job.

    Args:
        folder: Where it runs.
        live: Processes of this test, with their environment.
        arguments: Flags of ``ropewalk local``, the program and its arguments.
    """

    def __init__(self, folder: Path, live: LivePids, arguments: Sequence[str]) -> None:
        self.folder = folder
        self._live = live
        self._output = folder / "output.txt"
        (folder / "sitecustomize.py").write_text(_AWAY)
        path = os.pathsep.join((str(folder), str(processes.ROOT / "src")))
        with self._output.open("wb") as stream:
            self.launcher = processes.start(
                [*processes.ROPEWALK, "local", "--plain", "--model-dir", "model", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """All that it has written."""
        return self._output.read_text(errors="replace")

    def until_said(self, text: str, times: int = 1) -> None:
        """Wait until it has written something so often."""

        def has_said() -> bool:
            assert self.launcher.poll() is None, self.said
            return self.said.count(text) >= times

        wait_until(has_said, 60, text)

    # -- its tasks -----------------------------------------------------------------------------

    def pid(self, task: str) -> int | None:
        """The process of a task; None: it does not run."""
        role, _, index = task.partition(":")
        wanted = {"type": role, "index": int(index)}
        for pid, environment in self._live().items():
            if json.loads(environment.get("TF_CONFIG") or "{}").get("task") == wanted:
                return pid
        return None

    def send(self, task: str, number: int) -> int:
        """Send a signal to a task that runs; its process."""
        pid = self.pid(task)
        assert pid is not None, f"{task} does not run: {self.said}"
        os.kill(pid, number)
        return pid

    def send_away(self) -> None:
        """Chiefs that are started from now on are away."""
        (self.folder / "away").touch()

    def have_back(self) -> None:
        """They are back."""
        (self.folder / "away").unlink()

    # -- the chief -----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the chief is."""
        [address] = re.findall(r"the chief is at (\S+?);?$", self.said, flags=re.MULTILINE)
        return str(address)

    def status(self) -> JobStatus | None:
        """What the chief says; None: it does not answer."""
        with closing(ChiefClient(self.address, Settings(), Principal("driver"))) as chief:
            try:
                return chief.status(timeout_s=2)
            except RopewalkError:
                return None

    def scale(self, ps: int) -> None:
        """Have so many ps, and wait until the job has them."""
        from ropewalk.annexes.replication.share_commands import scale_command

        timeout = ["--timeout-s", str(scaled(60))]
        done = CliRunner().invoke(scale_command, [self.address, "--ps", str(ps), *timeout])
        assert done.exit_code == 0, f"{done.output}{done.exception}{self.said}"

    def end(self) -> int:
        """Let the programs end; the exit code of the job."""
        for each in ("enough", "over"):
            (self.folder / each).touch()
        return int(self.launcher.wait(scaled(60)))

    def stop(self) -> None:
        """End what still runs: the tasks end with their launcher."""
        if self.launcher.poll() is None:
            self.launcher.kill()
        self.launcher.wait(scaled(10))
