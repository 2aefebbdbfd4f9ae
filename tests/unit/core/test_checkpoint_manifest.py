"""A manifest with any field missing, of another type, huge, negative or twice, behind a digest that
fits: whatever is read of it is an error that names the checkpoint, or values that were saved.
"""

import copy
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.saving import checkpointer
from ropewalk.core.checkpoint import CheckpointReader
from ropewalk.core.checkpoint.manifest import digest
from ropewalk.core.errors import CheckpointError

Json = Any
_MISSING, _TWICE = object(), object()
_OTHERS: list[Any] = [
    _MISSING, _TWICE, None, True, -1, 0, 1, 3, 10**9, 2**40, 2**63 - 1, 2**63, 10**30, 1.5, 1e308,
    float("nan"), float("inf"), "", "x", "3", "a/b", "..", "\0", "float32", "(1,f4", "xxh3:00",
    [], {}, [1], [-1], [2**40, 2**40], [10**30], [0] * 100, [[]], {"a": 1},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpointer(tmp_path / "model", seed=1).save(10)
    return tmp_path / "model" / "ckpt-0000000010"


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Enough for these tests; an array as large as a damaged number says is a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 1024**3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def damaged(whole: Json) -> Iterator[tuple[str, Json]]:
    """Every copy with one thing in it changed, and what that was."""
    for path in paths(whole):
        for value in _OTHERS:
            made = copy.deepcopy(whole)
            at = made
            for key in path[:-1]:
                at = at[key]
            if value is _MISSING:
                del at[path[-1]]
                what = "missing"
            elif value is _TWICE:
                what = "twice"
                again = copy.deepcopy(at[path[-1]])
                if isinstance(at, list):
                    at.append(again)
                else:
                    at[f"{path[-1]}2"] = again
            else:
                at[path[-1]] = value
                what = repr(value)
            yield f"{'.'.join(map(str, path))}: {what}", made


def paths(found: Json, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*above, key))


def write_manifest(folder: Path, document: Json) -> None:
    rest = json.dumps(document, indent=1).encode()[1:]
    said = digest(rest).encode()
    (folder / "manifest.json").write_bytes(b'{\n "digest": "' + said + b'",' + rest)


def read_manifest(folder: Path) -> Json:
    document = json.loads((folder / "manifest.json").read_text())
    del document["digest"]
    return document


def read_all(folder: Path) -> dict[str, Any]:
    """All that a reader gives, in each of its ways."""
    reader = CheckpointReader(str(folder))
    reader.verify()
    values = reader.read_all()
    for name in reader.manifest.variables:
        for slot in ["", *reader.slots(name)]:
            parts = b"".join(reader.parts(name, slot))
            assert parts == reader.read(name, slot).tobytes()
            reader.read_rows(name, 0, 1, slot)
    return values


def problem_of(read: Callable[[], dict[str, Any]], folder: Path, whole: dict[str, Any]) -> str:
    try:
        values = read()
    except CheckpointError as error:
        return "" if str(folder) in error.message else f"unnamed: {error.message}"
    except Exception as error:  # noqa: BLE001 - the test lists them
        return f"{type(error).__name__}: {error}"
    known = {name: value for name, value in values.items() if name in whole}
    for name, value in known.items():
        if not np.array_equal(value, whole[name]):
            return f"other values of {name}"
    return ""


@pytest.mark.usefixtures("bounded_memory")
def test_every_damage_of_a_manifest_is_an_error_that_names_it(folder: Path) -> None:
    whole, document = read_all(folder), read_manifest(folder)
    problems = {}
    for what, made in damaged(document):
        write_manifest(folder, made)
        if problem := problem_of(lambda: read_all(folder), folder, whole):
            problems[what] = problem
    assert problems == {}


@pytest.mark.usefixtures("bounded_memory")
def test_every_damage_of_a_header_is_an_error_that_names_it(folder: Path) -> None:
    """Of a checkpoint whose manifest has no digests of headers, as the first ones."""
    whole, document = read_all(folder), read_manifest(folder)
    document |= {"version": 1, "files": {}}
    (folder / "manifest.json").write_text(json.dumps(document))
    file = folder / "ps-0.safetensors"
    data = file.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    problems = {}
    for what, made in damaged(json.loads(data[8:length])):
        header = json.dumps(made).encode()
        file.write_bytes(len(header).to_bytes(8, "little") + header + data[length:])
        if problem := problem_of(lambda: read_all(folder), folder, whole):
            problems[what] = problem
    assert problems == {}


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("text", ["[" * 100_000, '{"variables":' * 50_000, "NaN", "", "[]", "\xff"])
def test_what_is_no_manifest_at_all_is_an_error_that_names_it(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        CheckpointReader(str(folder))


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("length", [0, 2**20, 2**62, 2**64 - 1])
def test_a_header_of_another_length_is_an_error_that_names_the_file(
    folder: Path, length: int
) -> None:
    file = folder / "ps-0.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    document = read_manifest(folder) | {"version": 1, "files": {}}
    (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"ps-0\.safetensors"):
        read_all(folder)
