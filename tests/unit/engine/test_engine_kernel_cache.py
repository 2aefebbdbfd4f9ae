"""Kernels are never loaded from a folder that somebody else may have written to; the reason is
said.
"""

import errno
import fcntl
import grp
import os
from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.engine.kernel_cache import candidates, choose_folder, compiling

SELF = os.geteuid()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that is ours from the top; pytest's own have the mode 0700."""
    return tmp_path


@pytest.fixture
def group_of_others(calls: Calls) -> int:
    """A group of this process that has other members."""
    gid = os.getegid()
    members = grp.struct_group(("team", "x", gid, ["somebody"]))
    calls.after(grp, "getgrgid", lambda *_: members)
    return gid


def chosen(*folders: Path) -> tuple[Path | None, list[str]]:
    found = choose_folder(folders)
    return found.path, [str(refusal) for refusal in found.refused]


def test_a_folder_is_made_for_us_alone(home: Path) -> None:
    path, refused = chosen(home / "new" / "cache")
    assert path is not None
    assert path.parent == home / "new" / "cache"
    assert path.stat().st_mode & 0o777 == 0o700
    assert refused == []
    assert chosen(home / "new" / "cache") == (path, [])  # it is taken again


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o777, 0o1777], ids=oct)
def test_a_folder_that_is_open_to_others_is_refused_and_the_next_one_taken(
    home: Path, mode: int
) -> None:
    first, _ = chosen(home / "a")
    assert first is not None
    first.chmod(mode)
    path, (refusal,) = chosen(home / "a", home / "b")
    assert path is not None
    assert path.parent == home / "b"
    assert str(first) in refusal
    assert "not 700: others may have written to it" in refusal


def test_a_link_in_the_place_of_the_folder_is_refused(home: Path) -> None:
    elsewhere, _ = chosen(home / "elsewhere")
    assert elsewhere is not None
    (home / "a").mkdir()
    (home / "a" / elsewhere.name).symlink_to(elsewhere)
    path, (refusal,) = chosen(home / "a")
    assert path is None
    assert "is no folder of its own" in refusal


@pytest.mark.parametrize("what", ["file", "folder", "cache"])
def test_what_belongs_to_another_user_is_refused(home: Path, calls: Calls, what: str) -> None:
    path, _ = chosen(home / "a")
    assert path is not None
    inner = path / "engine_1"
    inner.mkdir(mode=0o700)
    (inner / "sgd-float32.kernel").write_bytes(b"")
    theirs = {"file": inner / "sgd-float32.kernel", "folder": inner, "cache": path}[what]
    if SELF == 0:
        os.chown(theirs, 12345, -1)
    else:

        def of_another(status: os.stat_result, path: Path) -> os.stat_result:
            owner = 12345 if path == theirs else status.st_uid
            return os.stat_result([*status[:4], owner, *status[5:]])

        calls.after(Path, "lstat", of_another)
    found, (refusal,) = chosen(home / "a")
    assert found is None
    assert f"{theirs} belongs to user 12345, not to {SELF}" in refusal


def test_a_linked_file_is_refused(home: Path) -> None:
    path, _ = chosen(home / "a")
    assert path is not None
    (path / "sgd-float32.kernel").symlink_to("/etc/passwd")
    found, (refusal,) = chosen(home / "a")
    assert found is None
    # The link is ours; what it names need not be.
    assert "sgd-float32.kernel is a link" in refusal


def test_a_folder_under_one_that_anybody_may_rename_is_refused(home: Path) -> None:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    path, (refusal,) = chosen(home / "open" / "cache")
    assert path is None
    assert f"others may write to {home / 'open'}" in refusal
    (home / "open").chmod(0o1777)  # as /tmp: what is ours cannot be replaced there
    path, refused = chosen(home / "open" / "cache")
    assert path is not None
    assert refused == []


@pytest.mark.parametrize("mode", [0o775, 0o2775], ids=oct)
def test_a_folder_under_one_that_our_group_may_rename_is_refused_with_the_remedy(
    home: Path, group_of_others: int, mode: int
) -> None:
    (home / "shared").mkdir()
    os.chown(home / "shared", -1, group_of_others)
    (home / "shared").chmod(mode)
    path, (refusal,) = chosen(home / "shared" / "cache")
    assert path is None
    assert f"others may write to {home / 'shared'}: all in its group" in refusal
    assert f"(chmod g-w {home / 'shared'})" in refusal
    (home / "shared").chmod(mode & ~0o020)
    assert chosen(home / "shared" / "cache")[0] is not None


@pytest.mark.needs("root")  # for a link that belongs to another user
def test_a_link_that_another_user_put_on_the_way_is_refused(home: Path) -> None:
    path, _ = chosen(home / "real")
    assert path is not None
    (home / "way").symlink_to(home / "real")
    assert chosen(home / "way")[0] is not None
    os.chown(home / "way", 12345, -1, follow_symlinks=False)
    found, (refusal,) = chosen(home / "way")
    assert found is None
    assert "way belongs to user 12345" in refusal


def test_a_file_in_the_way_is_named_and_no_folder_is_no_error(home: Path) -> None:
    (home / "a").write_text("")
    path, (refusal,) = chosen(home / "a" / "b")
    assert path is None
    assert refusal == f"{home / 'a' / 'b'}: Not a directory"
    assert chosen() == (None, [])


def test_the_setting_comes_first_then_numbas_variable_then_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/numba")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert candidates("/chosen") == [Path("/chosen"), Path("/numba"), Path("/xdg/ropewalk")]
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert candidates() == [Path("/home/me/.cache/ropewalk")]


def test_without_a_home_there_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    calls.fail(Path, "home", RuntimeError("Could not determine home directory."))
    assert candidates() == []


def test_a_kernel_is_compiled_by_one_process_and_the_others_do_not_wait(tmp_path: Path) -> None:
    place, other = tmp_path / "cpu" / "sgd.kernel", tmp_path / "cpu" / "adam.kernel"
    with compiling(place) as mine:
        with compiling(place) as also_mine:
            assert (mine, also_mine) == (True, False)
        with compiling(other) as is_ours:
            assert is_ours
    with compiling(place) as is_ours:
        assert is_ours, "it was given back"


def test_where_nothing_can_be_locked_each_process_compiles_for_itself(
    tmp_path: Path, calls: Calls
) -> None:
    calls.fail(fcntl, "flock", OSError(errno.ENOLCK, "no locks here"))
    with compiling(tmp_path / "sgd.kernel") as is_ours:
        assert is_ours
