"""The example of retrieval: two towers on a cluster, and a reader in a process of its own."""

import re
from pathlib import Path

import pytest

from helpers import processes
from helpers.waiting import scaled


@pytest.mark.annex("embedding")
def test_towers_retrieve_more_than_popular_items_also_in_another_process(tmp_path: Path) -> None:
    code, output, errors = processes.run(
        [
            *(*processes.ROPEWALK, "local", "--plain", "--workers", "1", "--ps", "2"),
            *(processes.ROOT / "examples" / "two_tower.py", "--", "--steps", "40"),
        ],
        timeout_s=scaled(60),
        cwd=tmp_path,
    )
    assert code == 0, output + errors
    found = re.findall(r"recall ([\d.]+), of popular items ([\d.]+)$", output, flags=re.MULTILINE)
    assert len(found) == 2, output
    (trained, popular), (read, _) = found
    assert float(trained) >= float(popular) + 0.15
    # The last step of the other worker may come between the two.
    assert float(read) == pytest.approx(float(trained), abs=0.02)
