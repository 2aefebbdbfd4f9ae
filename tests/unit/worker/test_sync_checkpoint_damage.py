"""Checkpoints of synchronous jobs are as safe from damage as those that ps write."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.checkpoint.job_record import JobRecord
from ropewalk.core.errors import CheckpointError
from ropewalk.distribute.job_snapshots import JobSnapshots, SavedVariable, Snapshot
from ropewalk.worker.lead.checkpoint_sources import ProgramVariables
from ropewalk.worker.lead.checkpointer import Checkpointer

OLD, NEW = "ckpt-0000000010", "ckpt-0000000020"
VALUES = "variables.safetensors"


def checkpointer(model_dir: Path, global_step: int = 0) -> Checkpointer:
    """Of a program that has ended after ``global_step`` steps."""
    job = JobSnapshots()
    value = np.full((4, 2), global_step, np.float32)
    variables = {"w": SavedVariable(value, {"momentum": value}, global_step, None, True)}
    job.give_last(Snapshot(global_step, variables))
    return Checkpointer(str(model_dir), lambda: ProgramVariables(job), keep=5)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    for step in (10, 20):
        checkpointer(tmp_path / "model", step).save(0)
    return tmp_path / "model"


def test_all_is_covered_by_digests_and_for_the_owner_alone(model_dir: Path) -> None:
    manifest = json.loads((model_dir / NEW / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert manifest["digest"].startswith("xxh3:")
    assert list(manifest["files"]) == [VALUES]
    assert model_dir.stat().st_mode & 0o777 == 0o700
    made = [(model_dir / NEW / name).stat().st_mode & 0o777 for name in ("manifest.json", VALUES)]
    assert made == [0o600, 0o600]


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def take_that_of_the_other(file: Path) -> None:
    file.write_bytes((file.parents[1] / OLD / file.name).read_bytes())


@pytest.mark.parametrize("name", ["manifest.json", VALUES])
@pytest.mark.parametrize("damage", [flip_a_bit, take_that_of_the_other])
def test_a_job_goes_back_to_the_last_whole_one_and_says_what_is_lost(
    model_dir: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(model_dir / NEW / name)
    saver = checkpointer(model_dir, 20)
    saver.prepare()
    with caplog.at_level("INFO"):
        chosen = saver.choose()
        saver.tell_resumed(JobRecord(global_step=27))
    assert chosen is not None
    assert chosen.name == OLD
    assert f"{model_dir / NEW} is damaged and is not used" in caplog.text
    assert f"resuming from {model_dir / OLD} (global step 10)" in caplog.text
    assert "17 acknowledged steps are lost: the job had reached global step 27" in caplog.text
    assert (model_dir / f"{NEW}.damaged").is_dir()
    CheckpointReader(saver.save(0)).verify()
    assert [info.name for info in list_checkpoints(str(model_dir))] == [OLD, NEW]


def test_where_all_are_damaged_nothing_begins_anew(model_dir: Path) -> None:
    for name in (OLD, NEW):
        flip_a_bit(model_dir / name / VALUES)
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged"):
        checkpointer(model_dir).choose()


def test_a_job_that_is_done_is_not_saved_once_more(model_dir: Path) -> None:
    path = checkpointer(model_dir, 30).save(0, final=True)
    again = checkpointer(model_dir, 30)
    again.choose()
    assert again.save(0, final=True) == path
