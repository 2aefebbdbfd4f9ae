"""Where the memory of blocks is: shared, or where their rows are found sooner."""

from pathlib import Path

import numpy as np
import pytest

from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.net import shared_memory
from ropewalk.server.ps.new_blocks import BlockMaker

pytestmark = pytest.mark.skipif(
    bool(shared_memory.unavailable()), reason=shared_memory.unavailable()
)


def is_shared(rows: int) -> bool:
    """Whether workers of the machine may read a table of 64 bytes per row themselves."""
    variable = VariableDefinition("table", (rows, 16), np.dtype(np.float32), Initializer("zeros"))
    (block,) = BlockMaker(Settings()).new([ShardDefinition(variable)])
    return block.location(0) is not None


@pytest.mark.parametrize(
    ("chosen", "has_them"),
    [
        ("always within_size advise [never] deny force", False),
        ("always within_size [advise] never deny force", True),
        ("[always] within_size advise never deny force", True),
        ("always within_size advise never [deny] force", False),
        ("", False),
    ],
)
def test_a_table_of_gigabytes_is_shared_where_shared_memory_has_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, *, has_them: bool
) -> None:
    file = tmp_path / "shmem_enabled"
    monkeypatch.setattr(shared_memory, "_HUGE_PAGES", file)
    if chosen:
        file.write_text(chosen + "\n")
    assert is_shared(1 << 25) == has_them  # no page of it is used
    assert is_shared(1 << 20)
