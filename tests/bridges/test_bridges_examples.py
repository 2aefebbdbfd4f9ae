"""The examples of bridges learn the digits, alone and on a cluster of processes."""

import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

LOCAL = [*processes.WINDLASS, "local", "--plain", "--workers", "2", "--ps", "2"]
CASES = [
    pytest.param(framework, command, id=f"{framework}-{where}")
    for framework in ("jax", "keras", "torch")
    for where, command in (("alone", [sys.executable]), ("cluster", LOCAL))
]


@pytest.mark.parametrize(("framework", "command"), CASES)
def test_the_example_learns_the_digits(framework: str, command: list[str], tmp_path: Path) -> None:
    pytest.importorskip(framework)
    program = ROOT / "examples" / f"digits_{framework}.py"
    code, output, errors = processes.run([*command, program], timeout_s=scaled(90), cwd=tmp_path)
    assert code == 0, output + errors
    found = re.findall(r"test accuracy ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    assert float(found[-1]) >= 0.9
