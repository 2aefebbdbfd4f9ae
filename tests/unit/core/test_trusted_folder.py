"""Folders that another user could have planted are refused; those of volumes work."""

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.core.checkpoint.storage import check_writable
from ropewalk.core.errors import StorageError
from ropewalk.core.files.trusted_folder import (
    UnsafeFolderError,
    check_private,
    check_shared,
    check_way,
)

SELF = os.geteuid()
as_root = pytest.mark.needs("root")  # for a folder of another user


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770, 0o2775], ids=oct)
def test_a_folder_of_ours_may_be_shared_with_its_group(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    folder.chmod(mode)
    check_shared(folder)
    assert folder.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o707], ids=oct)
def test_one_that_anybody_may_write_to_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UnsafeFolderError, match=rf"anybody may write to {folder} \(chmod o-w"):
        check_shared(folder)
    with pytest.raises(
        StorageError, match=r"^the chief does not use .*anybody may write"
    ) as caught:
        check_writable(str(folder), "the chief")
    assert caught.value.exit_code == 7


def test_one_that_somebody_could_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "model").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=f"others may write to {tmp_path / 'open'}"):
        check_shared(tmp_path / "open" / "model")
    (tmp_path / "open").chmod(0o1777)
    check_shared(tmp_path / "open" / "model")


@as_root
def test_one_of_another_user_is_refused_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for path in ("theirs", "link"):
        with pytest.raises(UnsafeFolderError, match="belongs to user 12345"):
            check_shared(tmp_path / path)


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder look like a volume that is mounted there."""
    is_mount = Path.is_mount

    def pretend(volume: Path) -> None:
        monkeypatch.setattr(Path, "is_mount", lambda self: self == volume or is_mount(self))

    return pretend


@pytest.mark.parametrize("owner", [SELF, pytest.param(12345, marks=as_root)])
def test_a_volume_is_trusted_as_it_was_mounted(
    tmp_path: Path, mount: Callable[[Path], None], owner: int
) -> None:
    """An emptyDir is root's with mode 0777; a bind mount or NFS volume has an owner of its own."""
    volume = tmp_path / "volume"
    (volume / "runs").mkdir(parents=True)
    volume.chmod(0o777)
    for path in (volume, volume / "runs"):
        os.chown(path, owner, -1)
    mount(volume)
    check_shared(volume)
    check_shared(volume / "runs")
    (volume / "runs").chmod(0o777)
    with pytest.raises(UnsafeFolderError, match="anybody may write"):
        check_shared(volume / "runs")


@pytest.mark.parametrize(
    ("name", "members", "is_trusted"),
    [
        pytest.param(None, [], True, id="our own, empty"),
        pytest.param(None, [None], True, id="our own, with us"),
        pytest.param(None, ["somebody"], False, id="our own, with somebody"),
        pytest.param("team", [], False, id="of many, as whose first group it is not listed"),
    ],
)
def test_a_group_may_write_above_a_private_folder_if_we_are_alone_in_it(
    tmp_path: Path,
    calls: Calls,
    name: str | None,
    members: list[str | None],
    *,
    is_trusted: bool,
) -> None:
    """Whoever may write there could put another folder in its place, after any check."""
    me = pwd.getpwuid(SELF).pw_name
    listed = [member or me for member in members]
    group = grp.struct_group((name or me, "x", os.getegid(), listed))
    calls.after(grp, "getgrgid", lambda *_: group)
    (tmp_path / "shared" / "mine").mkdir(parents=True)
    (tmp_path / "shared" / "mine").chmod(0o700)
    (tmp_path / "shared").chmod(0o2775)
    if is_trusted:
        check_private(tmp_path / "shared" / "mine")
        return
    with pytest.raises(
        UnsafeFolderError, match=rf"all in its group.*\(chmod g-w {tmp_path}/shared"
    ):
        check_private(tmp_path / "shared" / "mine")


@pytest.fixture
def empty_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Callable[[Path], None]
) -> Path:
    """A mounted folder with the mode of an emptyDir: anybody may write, nothing is sticky."""
    volume = tmp_path / "tmp"
    volume.mkdir()
    volume.chmod(0o777)
    mount(volume)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return volume


def test_in_a_pod_a_volume_may_hold_what_code_is_loaded_from(
    empty_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (empty_dir / "cache" / "kernels").mkdir(mode=0o700, parents=True)
    assert check_way(empty_dir / "new") == empty_dir / "new"
    check_private(empty_dir / "cache" / "kernels")
    (empty_dir / "cache").chmod(0o777)  # within it what is ours is looked at as everywhere
    with pytest.raises(UnsafeFolderError, match=f"others may write to {empty_dir / 'cache'}"):
        check_private(empty_dir / "cache" / "kernels")


def test_on_a_machine_with_several_users_a_mounted_folder_needs_the_sticky_bit(
    empty_dir: Path,
) -> None:
    """A shared scratch disk has the same mode, and anybody there may move our folder away."""
    with pytest.raises(UnsafeFolderError, match=rf"others may write to {empty_dir} \(.*chmod \+t"):
        check_way(empty_dir / "new")
    empty_dir.chmod(0o1777)
    assert check_way(empty_dir / "new") == empty_dir / "new"


def test_in_a_pod_a_folder_that_is_no_volume_is_looked_at_as_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=f"others may write to {tmp_path}"):
        check_way(tmp_path / "new")
