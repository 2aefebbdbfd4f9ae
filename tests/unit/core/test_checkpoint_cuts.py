"""Whether a checkpoint is of one moment, by its manifest, and the command that says so."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ropewalk.core.checkpoint import Manifest, manifest_bytes
from ropewalk.core.checkpoint.manifest import BlockRecord, CutRecord, contradictions, pushes_of
from ropewalk.core.errors import CheckpointError
from ropewalk.launch.commands.checkpoint import verify_command

CHIEF, W0 = "/job:chief/task:0", "/job:worker/task:0"


def _manifest(cut: CutRecord | None, *blocks: BlockRecord) -> Manifest:
    return Manifest(global_step=9, variables={}, tensors=(), blocks=blocks, cut=cut)


def _cut(**of_share_1: tuple[int, int]) -> CutRecord:
    first = {CHIEF: (3, 3), W0: (7, 5)}
    second = {CHIEF: (3, 2), W0: (7, 7)} | {f"/job:{k}/task:0": v for k, v in of_share_1.items()}
    return CutRecord(number=4, workers={CHIEF: 1, W0: 2}, shares=(first, second))


def _block(ps: int, generation: int, sequence: int) -> BlockRecord:
    return BlockRecord(ps=ps, shards=("w",), applied={W0: (generation, sequence)})


def test_marks_that_agree_are_one_moment() -> None:
    manifest = _manifest(_cut(), _block(0, 2, 5), _block(1, 2, 6), _block(1, 1, 99))
    assert contradictions(manifest) == []
    assert pushes_of(manifest) == {CHIEF: 3, W0: 7}


@pytest.mark.parametrize(
    ("cut", "block", "expected"),
    [
        pytest.param(
            _cut(worker=(8, 7)), _block(0, 2, 1), "marked its push 7 on share 0, and 8 on share 1",
            id="another number",
        ),
        pytest.param(
            _cut(evaluator=(1, 1)), _block(0, 2, 1), "share 1 has marks of", id="another task"
        ),
        pytest.param(
            _cut(), _block(0, 2, 6), "w of share 0 has push 6 of /job:worker/task:0, beyond its "
            "mark at 5", id="a later push",
        ),
        pytest.param(_cut(), _block(2, 2, 1), "values of share 2, and no marks", id="no marks"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(cut: CutRecord, block: BlockRecord, expected: str) -> None:
    [said] = contradictions(_manifest(cut, block))
    assert expected in said


def test_a_checkpoint_of_no_cut_says_nothing() -> None:
    assert contradictions(_manifest(None, _block(0, 2, 1))) == []
    assert pushes_of(_manifest(None)) == {}


def _verify(folder: Path, manifest: Manifest) -> Any:
    path = folder / "ckpt-0000000009"
    path.mkdir()
    (path / "manifest.json").write_bytes(manifest_bytes(manifest))
    return CliRunner().invoke(verify_command, [str(folder)])


def test_the_command_says_which_moment_it_is(tmp_path: Path) -> None:
    result = _verify(tmp_path, _manifest(_cut()))
    assert result.output.splitlines()[1:] == [
        "global step 9",
        "one moment of 2 shares (cut 4)",
        f"  {CHIEF}: all pushes up to 3, none beyond",
        f"  {W0}: all pushes up to 7, none beyond",
    ]


def test_the_command_says_that_it_is_of_no_moment(tmp_path: Path) -> None:
    assert "not of one moment" in _verify(tmp_path, _manifest(None)).output


def test_the_command_refuses_records_that_contradict_each_other(tmp_path: Path) -> None:
    result = _verify(tmp_path, _manifest(_cut(worker=(8, 7))))
    assert isinstance(result.exception, CheckpointError)
    assert "though it says so" in str(result.exception)
