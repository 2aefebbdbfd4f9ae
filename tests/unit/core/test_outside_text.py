"""Files, JSON and numbers from outside: taken as they are, or refused by one kind of error."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import text_of
from ropewalk.core.checkpoint.folder import open_folder
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.outside_text import open_plain, parse_number, read_json, read_plain
from ropewalk.core.settings import load_settings


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 * 10**9)  # a hole


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (_fifo, "it is a FIFO, no plain file"),
    "device": (_endless, "it is a device, no plain file"),
    "folder": (Path.mkdir, "it is a folder, no plain file"),
    "20 GB": (_huge, "it has 20000000000 bytes, at most 1048576 are read"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("make", "said"), NO_FILES.values(), ids=NO_FILES)
def test_whatever_would_wait_or_never_end_is_refused(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "named")
    with pytest.raises(OSError, match=said):
        read_plain(tmp_path / "named")


def test_a_nul_in_a_path_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a path has no NUL"):
        read_plain(f"{tmp_path}/a\0b")
    with pytest.raises(FileNotFoundError):
        read_plain(tmp_path / "missing")


@given(st.binary(max_size=64), st.integers(0, 64))
def test_a_file_is_read_whole_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, most: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "outside"
    path.write_bytes(data)
    if len(data) <= most:
        assert read_plain(path, most) == data
    else:
        with pytest.raises(OSError, match=f"{len(data)} bytes, at most {most}"):
            read_plain(path, most)


def test_a_link_is_followed_unless_said_otherwise(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "link") == b"x"  # as Kubernetes mounts a ConfigMap
    with pytest.raises(OSError, match="symbolic links"):
        open_plain(tmp_path / "link", follow_links=False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | text_of('a\0"', max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text_of("ab", max_size=2), inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_is_read_as_the_interpreter_reads_it(value: object) -> None:
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize("depth", [101, 500, 60_000, 1_000_000])
@pytest.mark.parametrize(
    ("opens", "closes"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"]
)
def test_json_that_is_nested_without_end_is_a_value_error(
    depth: int, opens: str, closes: str
) -> None:
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        read_json(opens * depth + "0" + closes * depth)


def test_json_of_a_hundred_levels_is_read() -> None:
    assert read_json("[" * 99 + "]" * 99)
    with pytest.raises(ValueError, match="digits"):
        read_json("1" * 5000)
    with pytest.raises(json.JSONDecodeError):
        read_json("[")


@given(st.integers(0, 2000))
def test_a_number_up_to_the_most_is_read(number: int) -> None:
    assert parse_number(str(number), 1000) == (number if number <= 1000 else None)


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "+1", " 1", "1 ", "1_0", "0x1", "1" * 5000])
def test_other_texts_are_no_number(text: str) -> None:
    assert parse_number(text, 10**9) is None


def test_a_nul_is_in_no_setting_and_in_no_folder() -> None:
    with pytest.raises(ConfigurationError, match=r"--tls-ca='a.x00b': .*a NUL can be in no path"):
        load_settings({"tls_ca": "a\0b"})
    for path in ("here/a\0b", "memory://a\0b"):
        with pytest.raises(ConfigurationError, match="has a NUL"):
            open_folder(path)
