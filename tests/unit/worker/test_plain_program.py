"""Which Python, and which process, can run a task of a cluster without the ropewalk command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.core.errors import ConfigurationError
from ropewalk.worker.plain_program import check_python


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 11, 9), (3, 12, 3), (3, 13, 0)])
def test_a_python_that_starts_threads_at_exit_is_taken(version: tuple[int, ...]) -> None:
    check_python(version)


@pytest.mark.parametrize("version", [(3, 12, 0), (3, 12, 2)])
def test_one_that_does_not_is_refused_with_what_to_do(version: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"Python 3\.12\.[02] .* `ropewalk run`"):
        check_python(version)


PROGRAM = """\
import multiprocessing, sys
import ropewalk as rw

if __name__ != "__main__":  # imported again
    strategy = rw.distribute.ParameterServerStrategy()
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_a_process_that_imports_the_program_again_is_told_where_to_make_the_strategy(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    cluster = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    ended = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "TF_CONFIG": config},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "/job:worker/task:0 has its process already" in ended.stderr
