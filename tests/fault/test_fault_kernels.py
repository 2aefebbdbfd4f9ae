"""A kernel that is not there yet holds up nobody: a job begins, trains and ends without it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.slow_compile import compiling_for_ever

RunCli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("no_process_left")

TABLES = """\
import numpy as np
import ropewalk as rw

emb = rw.embedding
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    table = emb.TableConfig("t", 4, max_rows=1000)
    embeddings = emb.Embeddings([emb.FeatureConfig("f", table)], rw.optimizers.Adam(0.1))

def step():
    rows = embeddings.lookup({"f": np.arange(8)})
    rows.apply_gradients({"f": np.ones((8, 4), np.float32)})

for _ in range(5):
    strategy.run(step)
"""


@pytest.mark.annex("embedding")
@pytest.mark.real_start
def test_a_chief_whose_kernel_another_process_compiles_for_ever_is_not_given_up(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TABLES)
    with compiling_for_ever(tmp_path / "cache", "adam_rows"):
        done = run_cli(
            "local", "--plain", "--workers", "1", "--ps", "1", "--join-timeout-s", "40", "train.py",
            ROPEWALK_KERNEL_CACHE=str(tmp_path / "cache"),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended with 140" not in done.stdout + done.stderr
