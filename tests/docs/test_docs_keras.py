"""The program of docs/keras.md runs, in a process of its own: its Keras is on JAX."""

import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

PAGE = (ROOT / "docs" / "keras.md").read_text()
EXAMPLES = re.findall(r"^``` {\.python \.keras}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert len(EXAMPLES) == 1
    program = tmp_path / "train.py"
    program.write_text(EXAMPLES[0])
    code, output, errors = processes.run(
        [sys.executable, program], timeout_s=scaled(60), cwd=tmp_path
    )
    assert code == 0, output + errors
