"""Removing a folder: deep, large, strange, held by somebody, or not removable at all."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.processes import ROOT
from ropewalk.core.files.temporary import remove_tree

FROM_HERE = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
as_root = pytest.mark.needs("root")


def make_deep(folder: Path, levels: int, name: str = "d") -> None:
    """Folders in each other, deeper than any path may be long, with a file on each level."""
    folder.mkdir()
    current = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
        os.mkdir(name, dir_fd=current)
        inner = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(current)


@pytest.mark.parametrize(("levels", "name"), [(1100, "d"), (30, "d" * 200)])
def test_no_depth_is_too_deep(tmp_path: Path, levels: int, name: str) -> None:
    for folder in ("x", "y"):
        make_deep(tmp_path / folder, levels, name)
    remove_tree(tmp_path / "x")
    above = os.open(tmp_path, os.O_RDONLY)
    remove_tree("y", dir_fd=above)
    os.close(above)
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_deep_is_told_where_there_is_no_rm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_deep(tmp_path / "x", 1100)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "nothing"))
        with pytest.raises(OSError, match="nested too deep") as caught:
            remove_tree(tmp_path / "x")
    assert caught.value.filename == str(tmp_path / "x")
    remove_tree(tmp_path / "x")


def test_wide_and_deep_folders_with_strange_names_go_and_what_links_name_stays(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("kept")
    top = tmp_path / "x"
    for folder in ("a/b/c", "a/b/d", "e/f/g", "h"):
        (top / folder).mkdir(parents=True)
        for number in range(50):
            (top / folder / str(number)).write_text("")
    (top / "a/b/link").symlink_to(other)
    (top / "link").symlink_to(other)
    (top / "dangling").symlink_to("nowhere")
    for name in (b"\xff\xfe", b"a\nb", b"-rf", "漢字".encode()):
        os.mkdir(os.fsencode(top) + b"/" + name)
        os.mkdir(os.fsencode(top) + b"/" + name + b"/" + name)
    os.mkfifo(top / "a/fifo")
    remove_tree(top)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (other / "kept").exists()


def test_what_is_not_there_a_file_and_a_link_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, kind in (
        ("nothing", FileNotFoundError),
        ("file", NotADirectoryError),
        ("link", OSError),
    ):
        with pytest.raises(kind):
            remove_tree(tmp_path / name)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        remove_tree("folder", dir_fd=folder)
    finally:
        os.close(folder)
    assert not (tmp_path / "folder").exists()


AS_NOBODY = """\
import os, sys
from ropewalk.core.files.temporary import remove_tree
top, uid = sys.argv[1], int(sys.argv[2])
if uid:
    os.chown(top, uid, uid)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
for mode in (0o000, 0o100, 0o400, 0o500):
    folder = f"{top}/x/{mode:o}"
    os.makedirs(f"{folder}/inner/full")
    os.chmod(f"{folder}/inner/full", mode)
    os.chmod(f"{folder}/inner", mode)
    os.chmod(folder, mode)
os.chmod(f"{top}/x", 0)
remove_tree(f"{top}/x")
print(os.listdir(top))
"""


def test_folders_without_permissions_go(tmp_path: Path) -> None:
    # Root may do everything; then it is another user, who must be able to reach the folder.
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    nobody = "65534" if os.getuid() == 0 else "0"
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(tmp_path), nobody],
        env=FROM_HERE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture
def immutable(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a file one that nobody can remove, until the test is over."""

    def make(path: Path) -> None:
        if subprocess.run(
            ["chattr", "+i", path],  # noqa: S607 - the test needs it
            capture_output=True,
            check=False,
        ).returncode:
            pytest.skip("this file system knows no immutable files")

    yield make
    subprocess.run(
        ["chattr", "-R", "-i", tmp_path],  # noqa: S607 - the test needs it
        capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.needs("chattr")
@as_root
def test_what_cannot_be_removed_stays_and_the_rest_goes(
    tmp_path: Path, immutable: Callable[[Path], None]
) -> None:
    top = tmp_path / "x"
    make_deep(top, 20)
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/held").write_text("")
    (top / "a/b/free").write_text("")
    immutable(top / "a/b/held")
    with pytest.raises(PermissionError, match="held"):
        remove_tree(top)
    left = [path for path in top.rglob("*") if not path.is_dir()]
    assert [path.name for path in left] == ["held"]


MOUNTED = """\
import subprocess, sys
from pathlib import Path
from ropewalk.core.files.temporary import remove_tree

def reason(path):
    try:
        remove_tree(path)
    except OSError as error:
        return error.errno

other, top = Path(sys.argv[1]), Path(sys.argv[2])
for inner in ("a/b/c", "d"):
    (top / inner).mkdir(parents=True)
    subprocess.run(["mount", "--bind", other, top / inner], check=True)
print(reason(top))
subprocess.run(["mount", "--bind", other, other], check=True)
print(reason(other))
"""


@pytest.mark.needs("unshare")
@as_root
def test_what_is_mounted_below_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "folder").mkdir(parents=True)
    (other / "folder/kept").write_text("kept")
    command = [sys.executable, "-c", MOUNTED, str(other), str(tmp_path / "x")]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", *command],  # noqa: S607 - the test needs it
        env=FROM_HERE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.stdout.split() == [str(errno.EBUSY)] * 2, done.stderr
    assert (other / "folder/kept").exists()


def test_somebody_who_goes_on_writing_does_not_keep_it_busy(tmp_path: Path) -> None:
    top = tmp_path / "x"
    top.mkdir()
    stop = threading.Event()

    def write() -> None:
        for number in range(300):  # an end, since it may be faster than what removes
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                (top / f"{number}/b/c").mkdir(parents=True)
                (top / f"{number}/b/c/file").write_text("")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            with contextlib.suppress(OSError):
                remove_tree(top)
    finally:
        stop.set()
        writer.join()
    top.mkdir(exist_ok=True)
    remove_tree(top)
    assert not top.exists()
