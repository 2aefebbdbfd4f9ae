"""A mapped file of rows: reserved, without a name, for this user alone, and not all in memory."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.mapped_memory import resident_bytes
from ropewalk.annexes.embedding.keyed.disk_block import RowFile
from ropewalk.core.errors import ConfigurationError, LimitExceededError, StorageError

PAGE = RowFile.page_bytes


def test_a_file_has_no_name_and_is_reserved_whole(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "rows"
    file = RowFile.create(folder, 1 << 20, "t")
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700
    found = os.fstat(file._descriptor)
    assert (found.st_mode & 0o777, found.st_nlink, found.st_size) == (0o600, 0, 1 << 20)
    assert found.st_blocks * 512 >= 1 << 20
    assert not file.memory.any()


def test_what_leaves_memory_is_on_disk_and_comes_back(tmp_path: Path) -> None:
    file = RowFile.create(tmp_path / "rows", 64 * PAGE, "t")
    values = np.random.default_rng(0).integers(0, 255, 64 * PAGE, np.uint8)
    file.memory[:] = values
    assert resident_bytes(file.memory) == 64 * PAGE
    file.drop(8, 56)

    assert resident_bytes(file.memory) == 8 * PAGE
    file.fetch(16, 4)
    np.testing.assert_array_equal(file.memory, values)


def test_memory_goes_back_to_the_system_with_the_last_array(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = RowFile.create(tmp_path / "rows", PAGE, "t")
    memory = file.memory[:10]
    del file
    memory[:] = 1
    del memory
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_said_with_both_numbers(tmp_path: Path, number: int, calls: Calls) -> None:
    calls.fail(os, "posix_fallocate", OSError(number, os.strerror(number)))
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LimitExceededError, match=r"'clicks' needs 4096 .*\d+ are free.*TABLE_FOLD"):
        RowFile.create(tmp_path / "rows", 4096, "clicks")
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"mode 755.*mode 700"):
        RowFile.create(tmp_path, PAGE, "t")


def test_a_folder_that_cannot_be_used_names_the_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"table 't'.*table_folder.*irectory"):
        RowFile.create(tmp_path / "file" / "rows", PAGE, "t")
