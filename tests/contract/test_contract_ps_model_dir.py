"""A ps writes and reads below its own model directory, and nowhere else, whatever it is asked."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from helpers.ps_peers import Ps, put, vector
from helpers.waiting import scaled
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.core.checkpoint.storage import probe_name
from ropewalk.core.errors import (
    CheckpointError,
    ConfigurationError,
    RefusedError,
    RopewalkError,
    StorageError,
)
from ropewalk.core.rules.definitions import ShardDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire import codec
from ropewalk.core.wire.error_table import from_rpc_error
from ropewalk.core.wire.steps import Operation
from ropewalk.net.channel import open_channel
from ropewalk.proto.v1 import ps_pb2, ps_pb2_grpc

CKPT = "ckpt-0000000007"
W = vector()
WHO = Incarnation(TaskId("chief", 0), 1)
CALLER = Principal("chief", index=0)
PATHS = [
    "/var/planted", "../planted", "ckpt-0000000007/../../planted", "file:///var/planted",
    "ftp://192.0.2.1/planted", "memory://planted", "", ".", "..", "ckpt-7", "ckpt-0000000007\n",
    "ckpt-٠٠٠٠٠٠٠٠٠٧",
]  # fmt: skip


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def ps(model_dir: Path) -> Iterator[Ps]:
    made = Ps("tcp", model_dir=str(model_dir))
    worker = made.worker(1)
    worker.create(W)
    worker.push(put(W, Operation.ASSIGN_ADD, 1))
    yield made
    made.close()


@pytest.fixture
def control(ps: Ps) -> Iterator[PsControl]:
    made = PsControl(ps.store.task, ps.address, Settings(), CALLER)
    yield made
    made.close()


def define(ps: Ps, checkpoint: str) -> ps_pb2.DefineResponse:
    request = ps_pb2.DefineRequest(
        create=True,
        shards=[codec.shard_to_wire(ShardDefinition(vector("new")))],
        checkpoint=checkpoint,
    )
    getattr(request, "from").CopyFrom(codec.incarnation_to_wire(WHO))
    with open_channel(ps.address, Settings(), CALLER) as channel:
        response: ps_pb2.DefineResponse = ps_pb2_grpc.ParameterServerStub(channel).Define(
            request, timeout=scaled(5)
        )
        return response


@pytest.mark.parametrize("path", PATHS, ids=repr)
def test_a_path_or_url_is_refused(
    ps: Ps, control: PsControl, tmp_path: Path, model_dir: Path, path: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RefusedError, match="is no name of a job's checkpoint"):
        control.save_shards(path, timeout_s=scaled(5))
    with pytest.raises(RefusedError, match="is no name of a job's checkpoint"):
        control.verify_shards(path, ["ps-0.safetensors"], timeout_s=scaled(5))
    if path:  # empty: no checkpoint is meant
        with pytest.raises(grpc.RpcError, match="is no name of a job's checkpoint"):
            define(ps, path)
    with pytest.raises(RopewalkError):
        control.try_model_dir(path or "/", timeout_s=scaled(5))
    assert sorted(tmp_path.rglob("*")) == before
    assert list(model_dir.iterdir()) == []


def test_what_a_ps_writes_is_for_its_user_alone(control: PsControl, model_dir: Path) -> None:
    control.save_shards(CKPT, timeout_s=scaled(10))
    control.try_model_dir("0" * 16, timeout_s=scaled(5))
    assert stat.S_IMODE((model_dir / CKPT).stat().st_mode) == 0o700
    files = [model_dir / CKPT / "ps-0.safetensors", model_dir / probe_name("0" * 16)]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


def test_a_directory_that_a_group_shares_stays_shared(control: PsControl, model_dir: Path) -> None:
    """As a volume with fsGroup: root's, setgid and writable by the group."""
    model_dir.chmod(0o2770)
    control.save_shards(CKPT, timeout_s=scaled(10))
    assert stat.S_IMODE((model_dir / CKPT).stat().st_mode) == 0o2770
    assert stat.S_IMODE((model_dir / CKPT / "ps-0.safetensors").stat().st_mode) == 0o660
    assert stat.S_IMODE(model_dir.stat().st_mode) == 0o2770


def plant(place: Path, kind: str, elsewhere: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(place)
    else:
        place.symlink_to(elsewhere)


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_planted_directory_is_not_written_into(
    control: PsControl, model_dir: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "home").mkdir()
    plant(model_dir / CKPT, kind, tmp_path / "home")
    with pytest.raises(StorageError, match=f"{CKPT} is a link or a file, no folder"):
        control.save_shards(CKPT, timeout_s=scaled(5))
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_planted_file_is_not_written_to(
    control: PsControl, model_dir: Path, tmp_path: Path, kind: str
) -> None:
    profile = tmp_path / ".profile"
    profile.write_text("export EDITOR=ed")
    (model_dir / CKPT).mkdir()
    plant(model_dir / CKPT / "ps-0.safetensors", kind, profile)
    with pytest.raises(StorageError, match="no file"):
        control.save_shards(CKPT, timeout_s=scaled(5))
    assert profile.read_text() == "export EDITOR=ed"


@pytest.mark.parametrize("kind", ["link", "FIFO"])
@pytest.mark.parametrize("what", ["directory", "manifest.json"])
def test_a_planted_checkpoint_is_not_read(
    ps: Ps, control: PsControl, model_dir: Path, tmp_path: Path, kind: str, what: str
) -> None:
    """A FIFO there held the lock of all definitions for good."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.json").write_text("{}")
    if what == "directory":
        plant(model_dir / CKPT, kind, tmp_path / "theirs")
    else:
        (model_dir / CKPT).mkdir()
        plant(model_dir / CKPT / what, kind, tmp_path / "theirs" / what)
    with pytest.raises(CheckpointError, match=r"is a .*(link|FIFO)"):
        control.verify_shards(CKPT, [], timeout_s=scaled(5))
    with pytest.raises(grpc.RpcError) as caught:
        define(ps, CKPT)
    assert isinstance(from_rpc_error(caught.value, peer="ps", doing="define"), CheckpointError)


def test_a_ps_without_a_model_directory_says_which_flag_to_give() -> None:
    ps = Ps("tcp")
    control = PsControl(ps.store.task, ps.address, Settings(), CALLER)
    try:
        with pytest.raises(ConfigurationError, match=r"ps/task:0 .*--model-dir"):
            control.save_shards(CKPT, timeout_s=scaled(5))
        with pytest.raises(ConfigurationError, match=r"--model-dir"):
            control.try_model_dir("0" * 16, timeout_s=scaled(5))
    finally:
        control.close()
        ps.close()


def test_a_ps_that_cannot_write_says_where_and_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ps = Ps("tcp", model_dir=str(tmp_path / "file" / "below"))
    ps.worker(1).create(W)
    control = PsControl(ps.store.task, ps.address, Settings(), CALLER)
    try:
        with pytest.raises(StorageError, match=r"cannot write to .*/file/below.*model-dir"):
            control.save_shards(CKPT, timeout_s=scaled(5))
    finally:
        control.close()
        ps.close()
