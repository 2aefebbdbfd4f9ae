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
# Loads the framework once, and runs each program in a copy of the process.
RUN = """
import os, runpy, sys, warnings
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras
warnings.simplefilter("ignore")  # JAX warns of forks, also before it has a thread
for program in sys.argv[1:]:
    if os.fork() == 0:
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    if os.wait()[1]:
        sys.exit(f"{program} failed")
"""


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert len(EXAMPLES) == 6
    programs = [tmp_path / f"train{number}.py" for number in range(len(EXAMPLES))]
    for program, text in zip(programs, EXAMPLES, strict=True):
        program.write_text(text)
    code, output, errors = processes.run(
        [sys.executable, "-c", RUN, *programs], timeout_s=scaled(60), cwd=tmp_path
    )
    assert code == 0, output + errors
