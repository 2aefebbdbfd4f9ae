"""Packages are kept by digest, within a bound, and not taken from under who uses them."""

import os
import stat
import threading
from pathlib import Path

import pytest

from windlass.core.errors import LimitExceededError, PackageError, StorageError
from windlass.shipping import Package, PackageCache, pack


def package(folder: Path, name: str, size: int = 100) -> Package:
    project = folder / "projects" / name
    project.mkdir(parents=True)
    (project / "train.py").write_text(name[0] * size)
    return pack(project)


def age(cache: PackageCache, *packages: Package) -> None:
    """Make the first one the least recently used: file systems' clocks are coarse."""
    for when, each in enumerate(packages, start=1):
        path = cache.path_of(each.digest)
        assert path is not None
        os.utime(path, (when, when))


def test_a_package_is_found_by_its_digest_once_it_was_added(tmp_path: Path) -> None:
    one = package(tmp_path, "one")
    cache = PackageCache(tmp_path / "cache", 1000)
    assert cache.path_of(one.digest) is None
    assert cache.use(one.digest) is None
    with cache.add(one.data, one.digest) as used:
        assert used.path == cache.path_of(one.digest)
        assert (used.path / "train.py").read_text() == "o" * 100
    # It is not unpacked again: nobody looks at these bytes.
    with cache.add(b"", one.digest) as used:
        assert used.path.is_dir()
    again = PackageCache(tmp_path / "cache", 1000)
    assert again.path_of(one.digest) == used.path
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_the_least_recently_used_is_evicted_first(tmp_path: Path) -> None:
    one, two, four = (package(tmp_path, name) for name in ("one", "two", "four"))
    cache = PackageCache(tmp_path / "cache", 250)
    cache.add(one.data, one.digest).release()
    cache.add(two.data, two.digest).release()
    age(cache, one, two)
    used = cache.use(one.digest)
    assert used is not None
    used.release()
    cache.add(four.data, four.digest).release()
    assert cache.path_of(two.digest) is None
    assert cache.path_of(one.digest) is not None
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_what_is_in_use_stays_also_for_another_process_of_the_cache(tmp_path: Path) -> None:
    """Locks belong to the open folder, so a second cache object stands for a second process."""
    one, two, four = (package(tmp_path, name) for name in ("one", "two", "four"))
    cache = PackageCache(tmp_path / "cache", 250)
    other = PackageCache(tmp_path / "cache", 250)
    with cache.add(one.data, one.digest) as held:
        other.add(two.data, two.digest).release()
        age(cache, one, two)
        other.add(four.data, four.digest).release()
        assert (held.path / "train.py").is_file()
        assert cache.path_of(two.digest) is None
    held.release()  # a second time
    other.add(two.data, two.digest).release()


def test_a_package_that_does_not_fit_beside_those_in_use_is_refused_with_numbers(
    tmp_path: Path,
) -> None:
    one, two, large = (package(tmp_path, name) for name in ("one", "two", "large"))
    cache = PackageCache(tmp_path / "cache", 250)
    with cache.add(one.data, one.digest), cache.add(two.data, two.digest):
        with pytest.raises(
            LimitExceededError, match=r"300 bytes in .*over the limit of 250"
        ) as got:
            cache.add(large.data, large.digest)
        assert got.value.fields["limit"] == "250"
        assert cache.path_of(large.digest) is None
    cache.add(large.data, large.digest).release()


def test_one_larger_than_the_whole_cache_or_damaged_leaves_the_others_alone(
    tmp_path: Path,
) -> None:
    one, large = package(tmp_path, "one"), package(tmp_path, "large", 251)
    cache = PackageCache(tmp_path / "cache", 250)
    cache.add(one.data, one.digest).release()
    with pytest.raises(LimitExceededError, match="251 bytes of files, over the limit of 250"):
        cache.add(large.data, large.digest)
    with pytest.raises(PackageError, match="changed or cut"):
        cache.add(large.data[:-1], large.digest)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [one.digest]


@pytest.mark.parametrize("digest", ["", "..", "../x", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_nothing_but_a_digest_names_a_folder(tmp_path: Path, digest: str) -> None:
    cache = PackageCache(tmp_path / "cache", 250)
    for call in (cache.path_of, cache.use, lambda digest: cache.add(b"", digest)):
        with pytest.raises(PackageError, match="is no digest of a package"):
            call(digest)


def test_threads_that_add_one_package_at_once_all_get_it(tmp_path: Path) -> None:
    one = package(tmp_path, "one")
    cache = PackageCache(tmp_path / "cache", 250)
    together = threading.Barrier(4)
    found: list[str] = []

    def add() -> None:
        together.wait(30)
        with cache.add(one.data, one.digest) as used:
            found.append((used.path / "train.py").read_text())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == ["o" * 100] * 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [one.digest]


def test_what_killed_processes_left_is_removed_and_what_is_at_work_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    PackageCache(folder, 250)
    for name in (".unpacking-old", ".evicted-old", ".unpacking-new"):
        (folder / name / "lib").mkdir(parents=True)
        if name.endswith("old"):
            os.utime(folder / name, (1, 1))
    PackageCache(folder, 250)
    assert [path.name for path in folder.iterdir()] == [".unpacking-new"]


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777], ids=oct)
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(StorageError, match=r"packages cannot be kept in .*not 700"):
        PackageCache(tmp_path / "cache", 250)


def test_a_link_and_a_file_are_refused_as_a_cache(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="no folder of its own"):
        PackageCache(tmp_path / "link", 250)
    with pytest.raises(StorageError, match="File exists"):
        PackageCache(tmp_path / "file", 250)
