"""A job whose checkpoints are deltas: which are whole, what a failure costs, where it resumes."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from helpers.saving import WHO, StorePs
from helpers.tables import DIM, F32, gradients, table
from ropewalk.annexes.moments.server.deltas import Bases
from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.checkpoint.manifest import BaseRecord, Manifest, TableRecord
from ropewalk.core.errors import CheckpointError, StorageError
from ropewalk.core.settings import Settings
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.worker.lead.checkpoint_sources import PsShards, WholeOrDelta
from ropewalk.worker.lead.checkpointer import Checkpointer, DeltaPolicy

BASE = ("ckpt-0000000001", "xxh3:0")
RECORD = TableRecord(max_rows=9, dim=1, dtype="float32", parts=2, rule={})


def a_manifest(parts: tuple[int, ...] | None) -> Manifest:
    """One of a delta with the changed rows of some parts of a table; None: of a whole one."""
    base = BaseRecord(checkpoint=BASE[0], digest=BASE[1], parts={"t": parts}) if parts else None
    return Manifest(
        version=3 if base else 2,
        global_step=1,
        variables={},
        tensors=(),
        tables={"t": RECORD},
        base=base,
    )


def kinds(policy: DeltaPolicy, count: int) -> str:
    """What so many checkpoints are: whole ones and deltas, all of which come out as asked."""
    said = ""
    for number in range(count):
        kind = policy.following(final=False)
        said += "d" if kind.base else "w"
        made = a_manifest((0, 1) if kind.base else None)
        policy = policy.after(kind, f"ckpt-{number}", "xxh3:0", made)
    return said


def test_of_so_many_checkpoints_one_is_whole() -> None:
    assert kinds(DeltaPolicy(4), 9) == "wdddwdddw"
    assert kinds(DeltaPolicy(1), 3) == "www"


def test_the_last_one_of_a_job_is_whole_and_nothing_follows_it() -> None:
    assert DeltaPolicy(4, BASE, 1).following(final=True) == WholeOrDelta()


@pytest.mark.parametrize("parts", [(0,), None], ids=["of one ps", "of all"])
def test_after_a_delta_with_whole_parts_a_whole_one_is_next(parts: tuple[int, ...] | None) -> None:
    policy = DeltaPolicy(9, BASE)
    after = policy.after(policy.following(final=False), "ckpt-2", "", a_manifest(parts))
    assert after.following(final=False) == WholeOrDelta(may_be_base=True)


class Job:
    """A chief with deltas, two ps and a worker that trains a growing table."""

    def __init__(self, model_dir: Path, keep: int = 5) -> None:
        self.ps = [StorePs(index, str(model_dir)) for index in range(2)]
        peers = [LocalPs(ps.task, WHO, ps.store.settings, ps.store) for ps in self.ps]
        self.session = ParameterSession(peers, WHO, Settings())
        self.session.connect()
        source = PsShards([cast(PsControl, ps) for ps in self.ps])
        self.saver = Checkpointer(str(model_dir), lambda: source, keep, whole_every=3)
        chosen = self.saver.choose()
        self.step = chosen.global_step if chosen is not None else 0
        self.session.define(
            [table(max_rows=6000)], {}, create=True, restore_from=chosen.path if chosen else ""
        )

    def save(self, *, final: bool = False) -> str:
        """Train a step, after one on all keys in a new job, and save."""
        for keys in [np.arange(-1000, 1000)] * (not self.step) + [np.arange(40)]:
            values = np.full((keys.size, DIM), self.step + 1, F32)
            self.session.step(Step(gradients(t=(keys, values)), increment=1))
        self.step += 1
        return self.saver.save(self.step, final=final)

    def rows(self) -> list[float]:
        return self.session.rows.lookup("t", np.arange(-1000, 1000)).ravel().tolist()


def bases(model_dir: Path) -> list[str]:
    """By checkpoint: the step of its whole one, or that it is one."""
    found = [CheckpointReader(info.path) for info in list_checkpoints(str(model_dir))]
    return [
        f"{each.manifest.global_step}:{each.base.manifest.global_step if each.base else 'whole'}"
        for each in found
    ]


def test_deltas_are_kept_with_their_whole_one_and_a_job_resumes_from_them(tmp_path: Path) -> None:
    job = Job(tmp_path, keep=2)
    for _ in range(3):
        job.save()
    assert bases(tmp_path) == ["1:whole", "2:1", "3:1"]
    resumed = Job(tmp_path)
    assert (resumed.step, resumed.rows()) == (3, job.rows())
    resumed.save()
    assert bases(tmp_path)[-1] == "4:whole"
    job = Job(tmp_path, keep=2)
    for final in (False, False, True):
        job.save(final=final)
    assert bases(tmp_path) == ["5:whole", "6:5", "7:whole"]


def test_a_save_that_fails_is_made_up_for(tmp_path: Path) -> None:
    """A whole one is asked for again; a failed delta costs nothing."""
    job = Job(tmp_path)
    for fails in (True, False, True, False, False, True, False):
        job.ps[1].fails = StorageError("no space left") if fails else None
        if fails:
            with pytest.raises(StorageError):
                job.save()
        else:
            job.save()
    assert bases(tmp_path) == ["2:whole", "4:2", "5:2", "7:whole"]
    assert Job(tmp_path).rows() == job.rows()


def test_a_ps_that_has_come_to_lead_since_is_written_whole(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save()
    job.ps[0].store.part(Bases).clear()
    for _ in range(3):
        job.save()
    assert bases(tmp_path) == ["1:whole", "2:1", "3:whole", "4:3"]
    assert Job(tmp_path).rows() == job.rows()


def test_a_damaged_whole_one_takes_its_deltas_with_it_and_an_older_one_is_chosen(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    for _ in range(5):
        job.save()
    assert bases(tmp_path) == ["1:whole", "2:1", "3:1", "4:whole", "5:4"]
    file = tmp_path / "ckpt-0000000004" / "ps-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = Job(tmp_path)
    assert resumed.step == 3
    assert bases(tmp_path) == ["1:whole", "2:1", "3:1"]
    with pytest.raises(CheckpointError, match="ckpt-0000000004"):
        CheckpointReader(str(tmp_path / "ckpt-0000000005.damaged"))
