"""Damage of any kind is an error that names the file, and a job goes back to what is whole."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.saving import StorePs, checkpointer
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.errors import CheckpointError, PeerLostError, StorageError

OLD, NEW = "ckpt-0000000010", "ckpt-0000000020"
FILES = ["manifest.json", "ps-0.safetensors", "ps-1.safetensors"]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Two checkpoints that share the value of one variable."""
    made = tmp_path / "model"
    checkpointer(made, seed=1).save(10)
    checkpointer(made, seed=2).save(20)
    assert sorted(path.name for path in (made / NEW).iterdir()) == FILES
    return made


def what_is_seen(checkpoint: Path, file: Path) -> str:
    """How damage to a file shows; empty: as it should."""
    try:
        CheckpointReader(str(checkpoint)).verify()
    except CheckpointError as error:
        return "" if str(file) in error.message else f"unnamed: {error.message}"
    except Exception as error:  # noqa: BLE001 - the test lists them
        return repr(error)
    return "silent"


def damages(data: bytes, every: int) -> Iterator[tuple[str, bytes]]:
    for at in range(0, len(data), every):
        for bit in range(8) if every == 1 else [at // every % 8]:
            changed = bytes([data[at] ^ 1 << bit])
            yield f"bit {bit} of byte {at}", data[:at] + changed + data[at + 1 :]
        yield f"cut at {at}", data[:at]
    yield "one byte more", data + b" "


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_every_cut_is_an_error_that_names_the_file(
    model_dir: Path, name: str, every: int
) -> None:
    file = model_dir / NEW / name
    whole, problems = file.read_bytes(), {}
    for what, data in damages(whole, every):
        file.write_bytes(data)
        if wrong := what_is_seen(model_dir / NEW, file):
            problems[what] = wrong
    assert problems == {}
    file.write_bytes(whole)
    CheckpointReader(str(model_dir / NEW)).verify()


def remove(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def take_that_of_the_other_checkpoint(file: Path) -> None:
    shutil.copyfile(file.parents[1] / OLD / file.name, file)


def take_that_of_the_other_ps(file: Path) -> None:
    other = {"ps-0.safetensors": "ps-1.safetensors", "ps-1.safetensors": "ps-0.safetensors"}
    shutil.copyfile(file.with_name(other.get(file.name, "ps-0.safetensors")), file)


def make_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_a_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


DAMAGE = [
    remove, empty, truncate, take_that_of_the_other_checkpoint, take_that_of_the_other_ps,
    make_a_folder, make_a_fifo, make_a_link,
]  # fmt: skip
damage_of_all_kinds = pytest.mark.parametrize(
    "damage", DAMAGE, ids=lambda damage: str(damage.__name__).replace("_", " ")
)


@damage_of_all_kinds
@pytest.mark.parametrize("name", FILES)
def test_a_job_goes_back_to_the_checkpoint_before_and_says_both_names_and_why(
    model_dir: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(model_dir / NEW / name)
    saver = checkpointer(model_dir)
    saver.prepare()
    chosen = saver.choose()
    assert chosen is not None
    assert chosen.name == OLD
    assert [info.name for info in list_checkpoints(str(model_dir))] == [OLD]
    told = "\n".join(record.message for record in caplog.records if record.levelname == "WARNING")
    if (name, damage) == ("manifest.json", remove):
        assert f"removed {model_dir / NEW}: an incomplete checkpoint" in told
        return
    assert f"{model_dir / NEW} is damaged and is not used" in told
    assert f"Going back to {model_dir / OLD}" in told
    if damage is take_that_of_the_other_checkpoint and name == "manifest.json":
        assert "manifest.json is of global step 10" in told
    else:
        assert str(model_dir / NEW / name) in told
    assert (model_dir / f"{NEW}.damaged").is_dir()  # for whoever can mend it
    # The same step can be saved again, and is whole.
    CheckpointReader(saver.save(20)).verify()


@damage_of_all_kinds
def test_who_names_a_checkpoint_gets_the_error(
    model_dir: Path, damage: Callable[[Path], None]
) -> None:
    file = model_dir / NEW / "ps-1.safetensors"
    damage(file)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(str(model_dir / NEW)).read_all()
    assert str(file) in caught.value.message


def test_where_all_are_damaged_the_error_is_permanent_and_nothing_is_touched(
    model_dir: Path,
) -> None:
    files = [model_dir / name / "ps-0.safetensors" for name in (OLD, NEW)]
    for file in files:
        truncate(file)
    before = sorted(model_dir.rglob("*"))
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged") as caught:
        checkpointer(model_dir).choose()
    assert caught.value.exit_code == 4
    assert all(str(file) in caught.value.message for file in files)
    assert sorted(model_dir.rglob("*")) == before


def test_trouble_that_may_pass_does_not_lead_to_an_older_checkpoint(
    model_dir: Path, calls: Calls
) -> None:
    saver = checkpointer(model_dir)
    calls.fail(StorePs, "verify_shards", PeerLostError("/job:ps/task:1 does not answer"))
    with pytest.raises(PeerLostError):
        saver.choose()
    assert [info.name for info in list_checkpoints(str(model_dir))] == [OLD, NEW]


def test_a_checkpoint_of_the_version_before_is_read_with_a_warning(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = CheckpointReader(str(model_dir / NEW)).manifest
    older = manifest.model_copy(update={"version": 1, "files": {}})
    (model_dir / NEW / "manifest.json").write_text(older.model_dump_json())
    chosen = checkpointer(model_dir).choose()
    assert chosen is not None
    assert chosen.name == NEW
    assert "was written without a digest: only its arrays are verified" in caplog.text
    np.testing.assert_array_equal(CheckpointReader(chosen.path).read("beta"), np.ones((2, 2)))


def test_a_ps_with_a_model_directory_of_its_own_is_found_before_training(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path / "chief", theirs=tmp_path / "ps")
    saver.prepare()
    with pytest.raises(StorageError) as caught:
        saver.try_servers()
    for word in ("/job:ps/task:0 at ps0:1", str(tmp_path / "ps"), str(tmp_path / "chief")):
        assert word in caught.value.message
    assert "--model-dir" in caught.value.message


def test_a_ps_that_lost_its_share_of_the_file_system_is_found_when_it_saves(
    tmp_path: Path,
) -> None:
    saver = checkpointer(tmp_path / "chief", theirs=tmp_path / "ps")
    saver.prepare()
    with pytest.raises(StorageError, match=r"wrote ckpt-0000000001/ps-0\.safetensors, and"):
        saver.save(1)
    assert list((tmp_path / "chief").iterdir()) == []


def test_a_servers_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path / "model")
    saver.prepare()
    saver.try_servers()
    assert list((tmp_path / "model").iterdir()) == []


def test_a_step_with_many_digits_is_found_again(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path)
    saver.save(9_999_999_999)
    path = saver.save(10_000_000_000)
    chosen = checkpointer(tmp_path).choose()
    assert chosen is not None
    assert chosen.path == path


def test_values_that_changed_without_a_step_are_saved_beside_the_others(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path)
    first = saver.save(0)
    assert saver.save(0) == first
    names = [saver.save(0, changed=True).rsplit("/", 1)[-1] for _ in range(2)]
    assert names == ["ckpt-0000000000-again", "ckpt-0000000000-again2"]
    assert [info.name for info in list_checkpoints(str(tmp_path))] == ["ckpt-0000000000", *names]
