"""A save that is killed at any moment leaves the checkpoint before, or the new one, whole."""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import processes, saving
from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint, list_checkpoints


@pytest.fixture(params=["/dev/shm", ""], ids=["shm", "disk"])  # noqa: S108 - a file system
def model_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On another file system than temporary files, and on the same one."""
    if not request.param:
        yield tmp_path / "model"
        return
    if not Path(request.param).is_dir() or Path(request.param).stat().st_dev == (
        tmp_path.stat().st_dev
    ):
        pytest.skip(f"{request.param} is no other file system than {tmp_path}")
    with tempfile.TemporaryDirectory(dir=request.param) as folder:
        yield Path(folder)


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_a_killed_save_leaves_the_checkpoint_before_or_the_new_one(
    model_dir: Path, kills: int, no_process_left: str
) -> None:
    rng, looks = random.Random(kills), 0
    said = 0
    for _ in range(kills):
        with processes.start(
            [sys.executable, saving.__file__, str(model_dir)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            said = int(process.stdout.readline())
            until = time.monotonic() + rng.uniform(0.02, 0.3)
            while time.monotonic() < until:  # readers never see half of one
                newest = latest_checkpoint(str(model_dir))
                assert newest is not None
                try:
                    CheckpointReader(newest.path)
                except Exception:
                    if newest in list_checkpoints(str(model_dir)):  # else it was pruned
                        raise
                looks += 1
            process.kill()
            process.wait(scaled(10))
            said = max([said, *(int(line) for line in process.stdout)])
        saver = saving.checkpointer(model_dir)
        saver.prepare()
        chosen = saver.choose()
        assert chosen is not None
        assert chosen.global_step in (said, said + 1)
        names = {info.name for info in list_checkpoints(str(model_dir))}
        assert {path.name for path in model_dir.iterdir()} == names
        assert not list(model_dir.rglob(".*"))
    assert looks > kills
