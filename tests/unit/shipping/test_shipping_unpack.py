"""A package is unpacked whole or not at all, and can write nowhere else."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import LimitExceededError, PackageError, RopewalkError, StorageError
from ropewalk.shipping import PackageLimits, pack, unpack
from ropewalk.shipping.package import digest_of

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"", **fields: object) -> Entry:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for field, value in fields.items():
        setattr(header, field, value)
    return header, content


def archive(*entries: Entry, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for header, content in entries:
            tar.addfile(header, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def refused(
    data: bytes, folder: Path, match: str, kind: type[RopewalkError] = PackageError
) -> RopewalkError:
    """Unpacking is refused, and leaves nothing."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(kind, match=match) as caught:
        unpack(data, digest_of(data), folder / "out", PackageLimits(max_bytes=10_000, max_files=10))
    assert sorted(folder.rglob("*")) == before
    return caught.value


def test_what_was_packed_comes_out_with_private_folders_and_two_modes(tmp_path: Path) -> None:
    project = tmp_path / "project"
    names = ["train.py", "lib/deep/" + "long" * 40 + ".py", "lib/größe.py", "empty"]
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name * 9 if name != "empty" else "")
    (project / "train.py").chmod(0o777)
    package = pack(project)
    mask = os.umask(0o077)
    try:
        unpack(package.data, package.digest, tmp_path / "out")
    finally:
        os.umask(mask)
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (project / name).read_bytes()
    modes = {
        str(path.relative_to(tmp_path / "out")): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "out").rglob("*")
    }
    assert modes.pop("train.py") == 0o755
    assert (modes.pop("lib"), modes.pop("lib/deep")) == (0o700, 0o700)
    assert set(modes.values()) == {0o644}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "project"]
    assert pack(tmp_path / "out").digest == package.digest


def test_a_package_that_was_changed_on_its_way_is_refused_with_both_digests(
    tmp_path: Path,
) -> None:
    data = archive(entry("a"))
    digest = digest_of(data)
    with pytest.raises(PackageError, match="was changed or cut on its way") as caught:
        unpack(data + b"x", digest, tmp_path / "out")
    assert caught.value.fields == {"digest": digest, "actual": digest_of(data + b"x")}
    assert caught.value.exit_code == 6
    with pytest.raises(PackageError, match="is no digest of a package"):
        unpack(data, "../../etc", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "it is absolute"),
        ("../out2", r"it has '\.\.'"),
        ("a/../../b", r"it has '\.\.'"),
        ("a/./b", r"a part of it is empty or '\.'"),
        ("a//b", "a part of it is empty"),
        (".", "a part of it is empty"),
        ("a\nb", "control character"),
        ("a\x1b[2Jb", "control character"),
        ("a\x7f", "control character"),
        ("a\u0085b", "control character"),
        ("x" * 256, "a part of it has 256 bytes, over the limit of 255"),
        ("d/" * 511 + "abc", "it has 1025 bytes, over the limit of 1024"),
        ("d/" * 900 + "abc", "a pax header of 1814 bytes"),
        ("bad\udcff", "something else than a path"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_names_that_lead_elsewhere_or_confuse_a_terminal_are_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    error = refused(archive(entry("fine.py", b"x"), entry(name, b"y")), tmp_path, reason)
    assert "nothing of it was unpacked" in error.message
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (tarfile.SYMTYPE, {"linkname": "/etc"}),
        (tarfile.LNKTYPE, {"linkname": "fine.py"}),
        (tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
        (tarfile.BLKTYPE, {}),
        (tarfile.FIFOTYPE, {}),
        (tarfile.DIRTYPE, {}),
        (tarfile.CONTTYPE, {}),
        (b"Z", {}),
    ],
    ids=["symlink", "hard link", "character device", "block device", "FIFO", "folder", "contiguous",
         "unknown"],
)  # fmt: skip
def test_everything_but_regular_files_is_refused(
    tmp_path: Path, kind: bytes, fields: dict[str, object]
) -> None:
    data = archive(entry("fine.py", b"x"), entry("x", b"", type=kind, **fields))
    refused(data, tmp_path, r"'x' is no regular file")


def test_a_link_cannot_be_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    link = entry("lib", type=tarfile.SYMTYPE, linkname=str(tmp_path / "target"))
    refused(archive(link, entry("lib/evil.py", b"x")), tmp_path, "no regular file")


@pytest.mark.parametrize(
    "names",
    [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")],
    ids=["a file twice", "a file as a folder", "a folder as a file", "a deeper folder as a file"],
)
def test_a_name_is_there_once(tmp_path: Path, names: tuple[str, str]) -> None:
    refused(archive(*(entry(name, b"x") for name in names)), tmp_path, "twice, or as a file and")


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([entry(f"f{n}") for n in range(11)], "11 files, over the limit of 10"),
        ([entry("d/" * 11 + "f")], "11 folders, over the limit of 10"),
        ([entry("a", bytes(5_000)), entry("b", bytes(5_001))], "10001 bytes of files, over the"),
    ],
    ids=["files", "folders", "bytes"],
)
def test_bounds_hold_and_the_error_names_both_numbers(
    tmp_path: Path, entries: list[Entry], what: str
) -> None:
    refused(archive(*entries), tmp_path, what, LimitExceededError)


def test_a_bomb_is_refused_by_what_its_header_says_and_by_its_own_size(tmp_path: Path) -> None:
    bomb = archive(entry("a", bytes(20_000_000)))
    assert len(bomb) < 50_000
    refused(bomb, tmp_path, "20000000 bytes of files, over the limit", LimitExceededError)
    behind = gzip.decompress(archive(entry("a")))[:512] + bytes(20_000_000)
    refused(gzip.compress(behind), tmp_path, "does not end where its archive ends")
    refused(os.urandom(70_000), tmp_path, "70000 bytes as sent, over the limit", LimitExceededError)


def _with_pax(records: bytes) -> bytes:
    header, _ = entry("././@PaxHeader", type=tarfile.XHDTYPE)
    header.size = len(records)
    padded = records + bytes(-len(records) % 512)
    return gzip.compress(
        header.tobuf(tarfile.USTAR_FORMAT) + padded + entry("a")[0].tobuf() + bytes(1024)
    )


def _header_with(field: slice, value: bytes) -> bytes:
    block = bytearray(entry("a")[0].tobuf(tarfile.USTAR_FORMAT))
    block[field] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return gzip.compress(bytes(block) + bytes(1024))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: b"", "ends in the middle"),
        (lambda: b"not gzip at all", "is no whole gzip file"),
        (lambda: archive(entry("a", b"x" * 999))[:-20], "is no whole gzip file"),
        (lambda: gzip.compress(b""), "ends in the middle"),
        (lambda: gzip.compress(b"x" * 512), "not one of tar"),
        (lambda: gzip.compress(entry("a", b"xy")[0].tobuf() + b"x"), "ends in the middle"),
        (lambda: gzip.compress(entry("a")[0].tobuf()), "ends in the middle"),
        (lambda: archive(entry("a")) + gzip.compress(bytes(20_000)), "does not end where"),
        (lambda: archive(entry("a")) + b"trailing", "is no whole gzip file"),
        (lambda: archive(entry("a" * 120), form=tarfile.GNU_FORMAT), "no regular file"),
        (lambda: _with_pax(b"12 size=999\n"), "something else than a path"),
        (lambda: _with_pax(b"9 path=b\n9 path=c\n"), "something else than a path"),
        (lambda: _with_pax(b"99 path=b\n"), "something else than a path"),
        (lambda: _with_pax(b"11 path=\xff\xfe\n"), "something else|not valid UTF-8"),
        (lambda: _header_with(slice(124, 136), b"\xff" * 12), "has a size of -"),
        (lambda: _header_with(slice(124, 136), b"\x80" + b"\x7f" * 11), "over the limit"),
        (lambda: _header_with(slice(0, 2), b"\xff\xfe"), "not one of tar"),
    ],
    ids=[
        "nothing", "not gzip", "cut", "no archive", "no header", "content cut", "no end",
        "archive behind", "bytes behind", "GNU long name", "pax size", "two pax paths",
        "pax length", "pax not UTF-8", "negative size", "huge size", "name not UTF-8",
    ],
)  # fmt: skip
def test_what_pack_does_not_write_is_refused(
    tmp_path: Path, make: Callable[[], bytes], match: str
) -> None:
    kind = LimitExceededError if match == "over the limit" else PackageError
    refused(make(), tmp_path, match, kind)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    data = archive(entry("a", b"new"))
    (tmp_path / "out").mkdir()
    error = refused(data, tmp_path, "cannot be unpacked into .*out: it exists", StorageError)
    assert error.exit_code == 7
    with pytest.raises(StorageError, match="No such file"):
        unpack(data, digest_of(data), tmp_path / "missing" / "out")


BASE = gzip.decompress(
    archive(entry("train.py", b"print()"), entry("lib/" + "x" * 120, b"y" * 600), entry("z"))
)
CHANGES = st.lists(
    st.tuples(
        # Mostly in headers: of the three files, of the long name and its pax header.
        st.one_of(st.integers(0, len(BASE) - 1), st.integers(0, 511), st.integers(1024, 2600)),
        st.sampled_from(
            [b"\0", b"/", b".", b"../", b"\xff", b"\x80", b"1", b"7777", b"2", b"x", b"\n"]
        ),
    ),
    min_size=1,
    max_size=6,
)


def _with_sums(data: bytearray) -> bytes:
    """With right checksums in what looks like a header: else nothing else is ever looked at."""
    for start in range(0, len(data) - 511, 512):
        block = data[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


@settings(max_examples=50)
@given(changes=CHANGES, cut=st.integers(0, 2000))
def test_no_change_to_an_archive_writes_elsewhere_or_fails_otherwise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int
) -> None:
    changed = bytearray(BASE)
    for at, value in changes:
        changed[at : at + len(value)] = value
    _check_safe(gzip.compress(_with_sums(changed)[: len(changed) - cut]), tmp_path_factory)


@settings(max_examples=20)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_no_change_to_the_compressed_bytes_does_either(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    changed = bytearray(gzip.compress(BASE, mtime=0))
    changed[at % len(changed)] = value
    _check_safe(bytes(changed), tmp_path_factory)


def _check_safe(data: bytes, folders: pytest.TempPathFactory) -> None:
    top = folders.mktemp("fuzz")
    inner = top / "inner"
    inner.mkdir()
    try:
        unpack(data, digest_of(data), inner / "out", PackageLimits(max_bytes=5_000, max_files=5))
    except (PackageError, LimitExceededError):
        assert list(inner.iterdir()) == []
    else:
        assert [path.name for path in inner.iterdir()] == ["out"]
        found = [path for path in inner.rglob("*") if not path.is_dir()]
        assert all(stat.S_ISREG(path.lstat().st_mode) for path in found)
        assert sum(path.stat().st_size for path in found) <= 5_000
    assert [path.name for path in top.iterdir()] == ["inner"]
