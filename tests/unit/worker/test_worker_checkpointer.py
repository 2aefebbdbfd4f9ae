"""Writing checkpoints: every ps its part, the manifest last, nothing after a failure."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from helpers.calls import Calls
from ropewalk.client.ps.control import PsControl
from ropewalk.core.arrays.dtypes import Array, as_dtype
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint, list_checkpoints
from ropewalk.core.checkpoint.folder import LocalFolder
from ropewalk.core.checkpoint.manifest import SavedPart, SavedShard, TensorRecord
from ropewalk.core.checkpoint.tensor_file import TensorFileWriter, TensorSpec
from ropewalk.core.errors import PeerLostError, RefusedError, StorageError
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.task import TaskId
from ropewalk.worker.lead.checkpoint_sources import PsShards
from ropewalk.worker.lead.checkpointer import Checkpointer

TABLE = VariableDefinition("table", (6, 2), as_dtype("float32"))
STEP_COUNT = VariableDefinition("count", (), as_dtype("int64"), trainable=False)
VALUES: dict[str, Array] = {
    "table": np.arange(12, dtype=np.float32).reshape(6, 2),
    "count": np.asarray(7, np.int64),
}


class FakePs:
    """Writes its shards as a ps does, or fails as told."""

    def __init__(self, index: int, shards: Sequence[ShardDefinition]) -> None:
        self.index = index
        self.shards = list(shards)
        self.fails: Exception | None = None
        self.asked: list[str] = []
        self.task, self.address = TaskId("ps", index), f"ps{index}:1"
        self.model_dir = Path("nowhere")
        self.pushes = 0

    def verify_shards(self, checkpoint: str, files: Sequence[str], *, timeout_s: float) -> None:
        assert timeout_s > 0
        CheckpointReader(str(self.model_dir / checkpoint)).verify(files)

    def save_shards(
        self,
        checkpoint: str,
        *,
        share: int,
        timeout_s: float,
        cut: int = 0,
        base: str = "",
        may_be_base: bool = False,
        process: int = 0,
    ) -> SavedPart:
        assert timeout_s > 0
        assert process == 0
        assert (base, may_be_base) == ("", False)
        assert (share, cut) == (self.index, 0)
        directory = self.model_dir / checkpoint
        self.asked.append(checkpoint)
        if not self.shards:
            return SavedPart()
        directory.mkdir(parents=True, exist_ok=True)
        file = f"ps-{self.index}.safetensors"
        specs = [
            TensorSpec(shard.label, shard.shape, shard.variable.dtype) for shard in self.shards
        ]
        records = []
        with (directory / file).open("wb") as stream:
            writer = TensorFileWriter(stream, specs)
            for shard, spec in zip(self.shards, specs, strict=True):
                value = VALUES[shard.variable.name]
                if value.ndim:
                    value = value[shard.row_offset : shard.row_offset + shard.rows]
                records.append(
                    TensorRecord(
                        variable=shard.variable.name,
                        row_offset=shard.row_offset,
                        rows=shard.rows,
                        file=file,
                        tensor=spec.name,
                        digest=writer.write(value),
                        num_bytes=spec.num_bytes,
                    )
                )
            writer.close()
        if self.fails is not None:
            raise self.fails  # after its file is there
        held = tuple(SavedShard(shard, 1, 10 + self.index, 0) for shard in self.shards)
        applied = {0: {TaskId("worker", 0): (1, 40 + self.index)}}
        files = {file: writer.record}
        return SavedPart(tuple(records), held, applied, 0, files, self.pushes)


def servers() -> list[FakePs]:
    first, second = cut(TABLE, 2)
    return [FakePs(0, [first, *cut(STEP_COUNT, 1)]), FakePs(1, [second])]


def checkpointer(model_dir: Path, fakes: Sequence[FakePs], keep: int = 5) -> Checkpointer:
    for fake in fakes:
        fake.model_dir = model_dir
    source = PsShards([cast(PsControl, fake) for fake in fakes])
    return Checkpointer(str(model_dir), lambda: source, keep)


def names(model_dir: Path) -> list[str]:
    return sorted(path.name for path in model_dir.iterdir()) if model_dir.exists() else []


def test_a_checkpoint_holds_every_part_and_reads_back(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path, servers())
    path = saver.save(40)
    assert path == str(tmp_path / "ckpt-0000000040")
    reader = CheckpointReader(path)
    reader.verify()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reader.read(name), value)
    manifest = reader.manifest
    assert (manifest.global_step, manifest.final) == (40, False)
    assert manifest.variables["table"].shape == (6, 2)
    assert manifest.variables["table"].updates == 11  # the highest of its shards
    assert manifest.variables["count"].trainable is False
    assert [(block.ps, block.applied) for block in manifest.blocks] == [
        (0, {"/job:worker/task:0": (1, 40)}),
        (1, {"/job:worker/task:0": (1, 41)}),
    ]
    assert saver.last == latest_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(PeerLostError("ps 1 is gone"), id="a ps is gone"),
        pytest.param(RefusedError("the disk is full"), id="a ps cannot write"),
    ],
)
def test_a_failing_save_leaves_no_directory(tmp_path: Path, error: Exception) -> None:
    fakes = servers()
    saver = checkpointer(tmp_path, fakes)
    saver.save(10)
    fakes[1].fails = error
    with pytest.raises(type(error), match=str(error)):
        saver.save(20)
    assert names(tmp_path) == ["ckpt-0000000010"]
    assert saver.last is not None
    assert saver.last.global_step == 10
    fakes[1].fails = None
    assert saver.save(20).endswith("ckpt-0000000020")


def test_a_manifest_that_cannot_be_written_leaves_no_directory(
    tmp_path: Path, calls: Calls
) -> None:
    saver = checkpointer(tmp_path, servers())
    calls.fail(LocalFolder, "put", PermissionError("read-only"))
    with pytest.raises(StorageError, match=r"^the chief cannot write to .*: permission denied"):
        saver.save(10)
    assert names(tmp_path) == []
    assert saver.last is None


def test_without_variables_nothing_is_written(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path, [FakePs(0, []), FakePs(1, [])])
    assert saver.save(0) == ""
    assert names(tmp_path) == []


def test_a_ps_without_shards_is_no_obstacle(tmp_path: Path) -> None:
    first, second = cut(TABLE, 2)
    saver = checkpointer(tmp_path, [FakePs(0, [first, second]), FakePs(1, [])])
    np.testing.assert_array_equal(CheckpointReader(saver.save(1)).read("table"), VALUES["table"])


def test_the_same_step_is_not_saved_twice(tmp_path: Path) -> None:
    fakes = servers()
    saver = checkpointer(tmp_path, fakes)
    assert saver.save(10) == saver.save(10)
    assert len(fakes[0].asked) == 1


def test_the_final_checkpoint_of_a_saved_step_is_written_beside_it(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path, servers())
    saver.save(10)
    path = saver.save(10, final=True)
    assert path.endswith("ckpt-0000000010-again")
    assert names(tmp_path) == ["ckpt-0000000010", "ckpt-0000000010-again"]
    found = latest_checkpoint(str(tmp_path))
    assert found is not None
    assert found.path == path
    assert CheckpointReader(path).manifest.final


def test_a_resumed_job_that_is_done_at_once_still_writes_a_final_checkpoint(tmp_path: Path) -> None:
    checkpointer(tmp_path, servers()).save(10)
    resumed = checkpointer(tmp_path, servers())
    assert resumed.choose() is not None
    assert resumed.save(10, final=True).endswith("-again")


def test_a_second_resumed_job_that_is_done_at_once_leaves_a_whole_checkpoint(
    tmp_path: Path,
) -> None:
    checkpointer(tmp_path, servers()).save(10)
    for _ in range(2):
        resumed = checkpointer(tmp_path, servers())
        resumed.prepare()
        resumed.choose()
        path = resumed.save(10, final=True)
        CheckpointReader(path).verify()
        assert latest_checkpoint(str(tmp_path)) == resumed.last


def test_a_failing_save_beside_a_saved_step_does_not_take_that_along(tmp_path: Path) -> None:
    checkpointer(tmp_path, servers()).save(10)
    for _ in range(2):  # the second job resumes from the first one's "-again"
        fakes = servers()
        resumed = checkpointer(tmp_path, fakes)
        resumed.prepare()
        resumed.choose()
        kept = resumed.last
        assert kept is not None
        fakes[1].fails = PeerLostError("ps 1 is gone")
        with contextlib.suppress(PeerLostError):  # it may also see that nothing is to be done
            resumed.save(10, final=True)
        CheckpointReader(kept.path).verify()
        fakes[1].fails = None
        resumed.save(10, final=True)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path, servers(), keep=2)
    for step in (10, 20, 30, 40):
        saver.save(step)
    assert [info.global_step for info in list_checkpoints(str(tmp_path))] == [30, 40]
    assert names(tmp_path) == ["ckpt-0000000030", "ckpt-0000000040"]


def test_what_a_killed_job_left_unfinished_is_removed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer(tmp_path, servers()).save(10)
    unfinished = tmp_path / "ckpt-0000000020"
    unfinished.mkdir()
    (unfinished / "ps-0.safetensors").write_bytes(b"half")
    (tmp_path / "notes").mkdir()  # not ours
    saver = checkpointer(tmp_path, servers())
    saver.prepare()
    found = saver.choose()
    assert found is not None
    assert found.global_step == 10
    assert names(tmp_path) == ["ckpt-0000000010", "notes"]
    assert f"removed {unfinished}: an incomplete checkpoint" in caplog.text


def test_an_empty_model_directory_has_nothing_to_resume_from(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path / "new", servers())
    saver.prepare()
    assert saver.choose() is None
    assert names(tmp_path / "new") == []


def test_the_manifest_is_the_last_thing_written(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watching(FakePs):
        def save_shards(self, checkpoint: str, **kwargs: Any) -> SavedPart:
            part = super().save_shards(checkpoint, **kwargs)
            seen.append((self.model_dir / checkpoint / "manifest.json").exists())
            return part

    path = checkpointer(tmp_path, [Watching(0, cut(TABLE, 1))]).save(1)
    assert seen == [False]
    assert json.loads((Path(path) / "manifest.json").read_text())["format"] == "ropewalk-checkpoint"
