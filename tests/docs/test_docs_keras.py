"""The programs of docs/keras.md run, in processes of their own: their Keras is on JAX."""

import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

PAGE = (ROOT / "docs" / "keras.md").read_text()
EXAMPLES = re.findall(r"^``` {\.python \.keras}\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.mark.parametrize("number", range(6))
def test_the_examples_of_the_page_run(number: int, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert len(EXAMPLES) == 6
    program = tmp_path / "train.py"
    program.write_text(EXAMPLES[number])
    code, output, errors = processes.run(
        [sys.executable, program], timeout_s=scaled(60), cwd=tmp_path
    )
    assert code == 0, output + errors
