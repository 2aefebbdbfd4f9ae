"""Packages at the gateway: sent in pieces, checked by their digest, kept within a bound."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from ropewalk.core.errors import LimitExceededError, RefusedError
from ropewalk.server.gateway import packages
from ropewalk.server.gateway.packages import PackageStore


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def send(store: PackageStore, data: bytes, *, piece: int = 1000, most: int = 1 << 30) -> int:
    digest, held = digest_of(data), 0
    held = store.put(digest, 0, b"", len(data))
    while held < min(len(data), most):
        held = store.put(digest, held, data[held : held + piece], len(data))
    return held


def test_a_package_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p"), os.urandom(5500)
    assert send(store, data) == 5500
    assert store.has(digest_of(data))
    assert store.get(digest_of(data), 0) == (data, 5500)
    assert store.get(digest_of(data), 5000) == (data[5000:], 5500)


def test_one_that_was_cut_off_goes_on_and_pieces_may_come_twice(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p"), os.urandom(5500)
    held = send(store, data, most=2500)
    assert held == 3000
    assert store.put(digest_of(data), 0, data[:1000], 5500) == 3000, "it has that piece"
    assert send(store, data) == 5500


def test_damage_is_found_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p"), os.urandom(500)
    with pytest.raises(RefusedError, match="damaged"):
        store.put(digest_of(b"other"), 0, data, 500)
    assert not store.has(digest_of(b"other"))
    assert list((tmp_path / "p").iterdir()) == []


def test_no_digest_is_a_path(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "p")
    for digest in ("../../x", "/etc/passwd", "", "A" * 64, "0" * 63 + "/"):
        with pytest.raises(RefusedError):
            store.put(digest, 0, b"x", 1)
        with pytest.raises(RefusedError):
            store.get(digest, 0)


def test_too_large_a_package_is_refused_before_it_comes(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "p")
    with pytest.raises(LimitExceededError):
        store.put("0" * 64, 0, b"", packages.MAX_PACKAGE_BYTES + 1)
    with pytest.raises(RefusedError, match="has no byte"):
        store.put("0" * 64, 0, b"123", 2)


def test_the_least_used_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_MAX_BYTES", 2500)
    store = PackageStore(tmp_path / "p")
    first, second, third = (bytes([number]) * 1000 for number in range(3))
    for number, data in enumerate((first, second)):
        send(store, data)
        os.utime(tmp_path / "p" / digest_of(data), (number, number))
    store.get(digest_of(first), 0)  # used just now
    send(store, third)
    assert [store.has(digest_of(data)) for data in (first, second, third)] == [True, False, True]


def test_uploads_that_never_end_make_room(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "p")
    for number in range(50):
        data = bytes([number]) * 100
        store.put(digest_of(data), 0, data[:50], 100)
    assert len(list((tmp_path / "p").iterdir())) <= 16


def test_what_a_cleaner_has_removed_is_sent_again(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p"), os.urandom(5500)
    send(store, data)
    other = os.urandom(3000)
    send(store, other, most=2000)
    shutil.rmtree(tmp_path / "p")
    assert not store.has(digest_of(data))
    assert send(store, data) == 5500
    assert send(store, other) == 3000, "from its beginning"
    assert store.get(digest_of(other), 0) == (other, 3000)
