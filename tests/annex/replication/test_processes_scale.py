"""Jobs of ``ropewalk local`` whose ps become more and fewer, or whose chief is lost."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.waiting import scaled, wait_until
from ropewalk.annexes.replication.share_commands import scale_command

StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

PROGRAM = """
import pathlib, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    counts = [rw.Variable(np.zeros(1, np.int64), name=f"count{i}") for i in range(3)]
steps = 0
while not pathlib.Path("enough").exists():
    for count in counts:
        count.assign_add([1])
    steps += 1
    pathlib.Path("steps").write_text(str(steps))
assert [int(count.read_value()[0]) for count in counts] == [steps] * 3
print("counted right")
"""


@pytest.mark.scenario
def test_a_local_job_has_more_ps_and_fewer_when_it_is_asked_to(
    start_cli: StartCli, tmp_path: Path
) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    process, output = start_cli(
        "local", "--plain", "--workers", "0", "--ps", "1", "--ps-shares", "3", "count.py"
    )
    wait_until((tmp_path / "steps").exists, 60, "the first step")
    [address] = re.findall(r"the chief is at (\S+)", output.read_text())

    def scale(count: str) -> str:
        done = CliRunner().invoke(scale_command, [address, "--ps", count])
        assert done.exit_code == 0, f"{done.output}{done.exception}{output.read_text()}"
        return done.output

    assert scale("3").startswith("ps:1, ps:2 has not come yet")
    assert scale("1").endswith("the job has 1 ps\n")
    assert scale("2").endswith("the job has 2 ps\n")
    refused = CliRunner().invoke(scale_command, [address, "--ps", "4"])
    assert "this job can have 1 to 3 ps, not 4" in str(refused.exception)
    (tmp_path / "enough").touch()
    assert process.wait(scaled(30)) == 0, output.read_text()
    text = output.read_text()
    assert "counted right" in text
    for line in ("1 → 3 ps", "3 → 1 ps", "1 → 2 ps"):
        assert line in text
    assert text.count("leaves: other ps have what it had") == 2


KILLED_ONCE = """
import os, pathlib, signal
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    count = rw.Variable(np.zeros(1, np.int64), name="count")
first = not pathlib.Path("killed").exists()
for _ in range(5):
    count.assign_add([1])
if first:
    pathlib.Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
print("counted to", int(count.read_value()[0]))
"""


@pytest.mark.scenario
def test_a_chief_that_is_lost_is_started_again_and_goes_on_with_what_the_ps_have(
    start_cli: StartCli, tmp_path: Path
) -> None:
    (tmp_path / "killed_once.py").write_text(KILLED_ONCE)
    for restarts, code in (("1", 0), ("0", 137)):
        (tmp_path / "killed").unlink(missing_ok=True)
        process, output = start_cli(
            "local", "--plain", "--workers", "0", "--restarts", restarts, "killed_once.py"
        )
        assert process.wait(scaled(60)) == code, output.read_text()
        text = output.read_text()
        assert ("chief:0 was lost; starting it again" in text) is (code == 0)
        assert ("counted to 10" in text) is (code == 0)
