"""Packages at the gateway: sent in pieces, checked by their digest, kept within a bound."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from ropewalk.annexes.service import kept as packages
from ropewalk.annexes.service.kept import PackageStore
from ropewalk.core.errors import LimitExceededError, RefusedError


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def send(
    store: PackageStore, data: bytes, *, piece: int = 1000, most: int = 1 << 30, owner: str = "a"
) -> int:
    digest, held = digest_of(data), 0
    held = store.put(digest, 0, b"", len(data), owner)
    while held < min(len(data), most):
        held = store.put(digest, held, data[held : held + piece], len(data), owner)
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


def test_the_least_used_make_room(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "p", max_bytes=2500)
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


def test_many_uploads_of_one_driver_end_none_of_another_one(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p"), os.urandom(5500)
    assert send(store, data, most=2500, owner="modest") == 3000
    for number in range(50):
        other = bytes([number]) * 100
        store.put(digest_of(other), 0, other[:50], 100, "greedy")
    assert store.put(digest_of(data), 0, b"", 5500, "modest") == 3000, "it goes on"
    assert len(list((tmp_path / "p").iterdir())) <= 16


def test_many_packages_of_one_driver_put_none_of_another_one_out(tmp_path: Path) -> None:
    store, data = PackageStore(tmp_path / "p", max_bytes=5000), os.urandom(1000)
    send(store, data, owner="modest")
    os.utime(tmp_path / "p" / digest_of(data), (0, 0))  # used the longest ago
    for number in range(20):
        send(store, bytes([number]) * 1000, owner="greedy")
    assert store.has(digest_of(data))
    assert sum(each.stat().st_size for each in (tmp_path / "p").iterdir()) <= 5000


def test_what_a_job_needs_stays_and_one_driver_has_half_of_the_room_for_it(tmp_path: Path) -> None:
    needed: list[str] = []
    store = PackageStore(tmp_path / "p", lambda: needed, max_bytes=5000)
    mine = [bytes([number]) * 1000 for number in range(4)]
    for data in mine[:2]:
        send(store, data)
        needed.append(digest_of(data))
        os.utime(tmp_path / "p" / digest_of(data), (0, 0))
    with pytest.raises(LimitExceededError, match=r"jobs of a .*2000 bytes.*ropewalk stop"):
        send(store, mine[2])
    for number in range(10, 30):
        send(store, bytes([number]) * 1000, owner="b")
    assert all(store.has(digest) for digest in needed)
    needed.pop()
    assert send(store, mine[2]) == 1000


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
