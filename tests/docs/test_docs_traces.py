"""docs/traces.md has the names of all spans, as the source has them."""

import subprocess
import sys

from helpers.processes import ROOT
from ropewalk.core.spans import CATALOGUE
from ropewalk.core.step_times import PARTS, STEP


def test_the_table_has_every_span() -> None:
    command = [sys.executable, str(ROOT / "tools" / "spans_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_parts_of_steps_have_the_same_names() -> None:
    assert {*PARTS, STEP} - set(CATALOGUE) == {"compute"}  # what no span covers
