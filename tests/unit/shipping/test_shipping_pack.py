"""What of a project directory is packed, and that the same files give the same bytes."""

import io
import os
import random
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.core.errors import ProjectError, ProjectTooLargeError
from ropewalk.shipping import Package, PackageLimits, pack
from ropewalk.shipping.package import largest


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def members(package: Package) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(package.data)) as archive:
        return {member.name: member for member in archive}


def test_the_same_files_have_one_digest_whatever_their_times_modes_and_order(
    tmp_path: Path,
) -> None:
    files = {"train.py": "1", "lib/b.py": "2", "lib/a.py": "3", "lib-c.py": "4", "ü/ñ.py": "5"}
    one = write(tmp_path / "one", **files)
    other = write(tmp_path / "other", **dict(reversed(files.items())))
    for path in other.rglob("*.py"):
        path.chmod(0o640)
        os.utime(path, (1, 1))
    package = pack(one)
    assert package == pack(other)
    assert package.names == ("lib-c.py", "lib/a.py", "lib/b.py", "train.py", "ü/ñ.py")
    assert (package.files, package.size) == (5, 5)
    (other / "train.py").chmod(0o700)
    assert pack(other).digest != package.digest


def test_of_a_file_there_is_sent_its_content_and_whether_it_is_executable(tmp_path: Path) -> None:
    write(tmp_path, **{"run.sh": "echo", "a.py": "pass"})
    (tmp_path / "run.sh").chmod(0o4751)
    (tmp_path / "a.py").chmod(0o666)
    found = members(pack(tmp_path))
    assert {name: member.mode for name, member in found.items()} == {"run.sh": 0o755, "a.py": 0o644}
    for member in found.values():
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (
            0,
            0,
            0,
            "",
            "",
        )


def test_what_no_job_needs_is_left_out_even_where_an_ignore_file_wants_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "train.py": "",
            ".gitignore": "!*\n",
            ".git/config": "",
            "lib/__pycache__/a.cpython-311.pyc": "",
            "old.pyc": "",
            ".venv/bin/python": "",
            "env/pyvenv.cfg": "",
            "env/lib/site.py": "",
            ".mypy_cache/x": "",
            "lib/.pytest_cache/x": "",
            "web/node_modules/x/index.js": "",
            ".ipynb_checkpoints/a.ipynb": "",
        },
    )
    assert pack(tmp_path).names == (".gitignore", "train.py")


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        pytest.param({".gitignore": "data/"}, {"a.py", "lib/a.py", "lib/b.txt"}, id="folder"),
        pytest.param({".gitignore": "/a.py"}, {"data/x", "lib/a.py", "lib/b.txt"}, id="anchored"),
        pytest.param({".gitignore": "a.py"}, {"data/x", "lib/b.txt"}, id="at every level"),
        pytest.param({".gitignore": "*\n!*/\n!*.py\n"}, {"a.py", "lib/a.py"}, id="only python"),
        pytest.param({".gitignore": "/*\n!/lib\n"}, {"lib/a.py", "lib/b.txt"}, id="only a folder"),
        pytest.param(
            {".gitignore": "a.py", "lib/.gitignore": "!a.py"},
            {"data/x", "lib/a.py", "lib/b.txt", "lib/.gitignore"},
            id="the deepest file decides",
        ),
        pytest.param(
            {".gitignore": "lib", "lib/.gitignore": "!a.py"},
            {"a.py", "data/x"},
            id="nothing comes back from a folder that is left out",
        ),
        pytest.param(
            {".gitignore": "data/*", ".ropewalkignore": "!x\nlib"},
            {"a.py", "data/x", ".ropewalkignore"},
            id="ropewalkignore decides after gitignore",
        ),
        pytest.param(
            {".gitignore": "\ufeffdata\r\n# lib\r\n\r\n!\r\na.py\r\n"},
            {"lib/b.txt"},
            id="CRLF, a mark of UTF-8, comments and a pattern of nothing",
        ),
    ],
)
def test_ignore_files_leave_out_what_git_leaves_out(
    tmp_path: Path, rules: dict[str, str], left: set[str]
) -> None:
    write(tmp_path, **{"a.py": "", "data/x": "", "lib/a.py": "", "lib/b.txt": ""}, **rules)
    kept = left | {".gitignore"} if rules.get(".gitignore", "")[:2] not in ("*\n", "/*") else left
    assert set(pack(tmp_path).names) == kept


@pytest.mark.needs("git")  # to compare with
@pytest.mark.parametrize("seed", range(12))
def test_patterns_of_any_kind_mean_what_they_mean_to_git(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    parts = ["a", "b", "c", "*", "**", "a*", "*.py", "?", "[ab]", "x.py", "*b*"]

    def pattern() -> str:
        body = "/".join(draw.choice(parts) for _ in range(draw.choice([1, 1, 1, 2, 2, 3])))
        return (
            draw.choice(["", "", "!"]) + draw.choice(["", "", "/"]) + body + draw.choice(["", "/"])
        )

    for _ in range(60):
        folder = tmp_path.joinpath(*(draw.choice("abc") for _ in range(draw.randint(0, 3))))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / draw.choice(["x.py", "q", "bb", "aa.py"])).touch()
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        if folder == tmp_path or draw.random() < 0.2:
            lines = "\n".join(pattern() for _ in range(draw.randint(1, 4)))
            (folder / ".gitignore").write_text(f"{lines}\n")
    (tmp_path / "kept").touch()
    with (tmp_path / ".gitignore").open("a") as stream:
        stream.write("!/kept\n")
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(tmp_path)]
    # A hook of git that runs the tests has variables that name its own repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run([*git, "init", "-q"], env=env, check=True, timeout=60)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert set(pack(tmp_path).names) == {name for name in listed.split("\0") if name}


def test_a_link_to_a_file_of_the_package_is_packed_as_that_file(tmp_path: Path) -> None:
    write(tmp_path, **{"lib/a.py": "content", "b.py": ""})
    (tmp_path / "lib/a.py").chmod(0o755)
    (tmp_path / "link.py").symlink_to("lib/a.py")
    (tmp_path / "again.py").symlink_to(tmp_path / "link.py")
    package = pack(tmp_path)
    assert package.names == ("again.py", "b.py", "lib/a.py", "link.py")
    found = members(package)
    for name in ("again.py", "lib/a.py", "link.py"):
        assert (found[name].isreg(), found[name].size, found[name].mode) == (True, 7, 0o755)


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../secret", "lib", ".", "nowhere", "ignored.txt", "loop"]
)
def test_any_other_link_is_refused_by_name_unless_it_is_left_out(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "secret").write_text("key")
    root = tmp_path / "project"
    write(root, **{"lib/a.py": "", "ignored.txt": "", ".gitignore": "ignored.txt"})
    (root / "loop").symlink_to(target)
    with pytest.raises(ProjectError, match=rf"loop -> {target}; .*\.ropewalkignore") as caught:
        pack(root)
    assert caught.value.exit_code == 2
    (root / ".ropewalkignore").write_text("loop")
    assert pack(root).names == (".gitignore", ".ropewalkignore", "lib/a.py")


def test_sockets_and_fifos_are_skipped_and_nobody_waits_for_them(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": ""})
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        # A path of a socket is short; that of a test may not be.
        folder = os.open(tmp_path, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        assert pack(tmp_path).names == ("a.py",)


def test_a_project_over_the_limit_is_refused_with_both_numbers_and_what_is_large(
    tmp_path: Path,
) -> None:
    write(tmp_path, **{"train.py": "x" * 10, "data/raw/big.bin": "x" * 900, "data/small": "x" * 90})
    with pytest.raises(ProjectTooLargeError) as caught:
        pack(tmp_path, PackageLimits(max_bytes=999))
    text = caught.value.message
    assert "has 1000 bytes of files, over the limit of 999" in text
    assert "data/raw/big.bin (900 bytes), data/small (90 bytes), train.py (10 bytes)" in text
    assert ".gitignore or .ropewalkignore" in text
    assert caught.value.fields == {"value": "1000", "limit": "999"}
    assert pack(tmp_path, PackageLimits(max_bytes=1000)).size == 1000


def test_too_many_files_are_refused_with_the_folders_they_are_in(tmp_path: Path) -> None:
    write(tmp_path, **{f"parts/{number}.txt": "" for number in range(8)}, **{"a.py": ""})
    with pytest.raises(
        ProjectTooLargeError, match=r"9 files or folders, over the limit of 8; .*parts/ \(8 files\)"
    ):
        pack(tmp_path, PackageLimits(max_files=8))
    assert pack(tmp_path, PackageLimits(max_files=9)).files == 9


def test_the_walk_ends_in_a_folder_of_very_many_files_that_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, **{f"{number}.log": "" for number in range(30)}, **{".gitignore": "*.log"})
    with pytest.raises(ProjectTooLargeError, match="over 20 files and folders, most of them left"):
        pack(tmp_path, PackageLimits(max_files=1))


def test_a_file_that_grows_while_it_is_packed_does_not_break_the_bound(
    tmp_path: Path, calls: Calls
) -> None:
    write(tmp_path, **{"a.log": "x", "b.py": "x"})

    def grow(path: Path, most: int) -> None:
        (tmp_path / "a.log").write_text("x" * 1000)

    calls.before("ropewalk.shipping.packing", "read_regular", grow)
    with pytest.raises(ProjectTooLargeError, match="over the limit of 10"):
        pack(tmp_path, PackageLimits(max_bytes=10))
    package = pack(tmp_path, PackageLimits(max_bytes=2000))
    assert (package.size, members(package)["a.log"].size) == (1001, 1000)


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[0m", "bad\udcff"], ids=ascii)
def test_a_name_that_unpacking_would_refuse_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ProjectError, match=r"cannot be packed: .*rename it") as caught:
        pack(tmp_path)
    assert caught.value.message.isprintable()


def test_names_too_long_for_the_old_header_of_tar_are_packed(tmp_path: Path) -> None:
    name = f"{'x' * 200}/{'ü' * 120}"
    assert pack(write(tmp_path, **{name: ""})).names == (name,)


def test_no_folder_and_nothing_to_send_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="has no file to send"):
        pack(tmp_path)
    with pytest.raises(ProjectError, match="is no folder"):
        pack(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(ProjectError, match="is no folder"):
        pack(tmp_path / "file")


def test_what_cannot_be_read_is_named(tmp_path: Path, calls: Calls) -> None:
    """Root may read everything, so the refusal is made here."""
    write(tmp_path, **{"secret.key": "x"})
    calls.fail(
        "ropewalk.shipping.packing", "read_regular", PermissionError(13, "Permission denied")
    )
    with pytest.raises(ProjectError, match=r"secret\.key cannot be read: Permission denied"):
        pack(tmp_path)


def test_a_path_of_folders_in_each_other_is_named_once() -> None:
    weights = {"a/b/c/big": 70, "a/b/other": 20, "a/x": 5, "z": 5}
    assert largest(weights) == [("a/b/c/big", 70), ("a/b/other", 20), ("a/x", 5), ("z", 5)]
    assert largest({f"d/{number}": 1 for number in range(9)}, 1) == [("d/", 9)]
    assert largest({}) == []
