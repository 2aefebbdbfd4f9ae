"""docs/metrics.md says what is: its table is the catalogue's, and its expressions use it."""

import re
import subprocess
import sys

from helpers.processes import ROOT
from ropewalk.telemetry.catalogue import CATALOGUE

PAGE = (ROOT / "docs" / "metrics.md").read_text()


def test_the_table_has_every_metric_as_it_is_exported() -> None:
    command = [sys.executable, str(ROOT / "tools" / "metrics_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_name_on_the_page_is_one() -> None:
    known = {metric.name for metric in CATALOGUE.values()}
    parts = {f"{name}_{end}" for name in known for end in ("bucket", "sum", "count")}
    named = set(re.findall(r"\bropewalk_[a-z_]+[a-z]\b", PAGE))
    assert len(named) > len(known) - 1
    assert named - parts <= known
