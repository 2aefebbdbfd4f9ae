"""What the system says of memory."""

from pathlib import Path

import pytest

from ropewalk.core.process.processes import out_of_memory_kills

VERSION_2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
VERSION_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"


@pytest.mark.parametrize(
    ("text", "kills"),
    [(VERSION_2, 2), (VERSION_1, 1), ("oom_kill_disable 0\n", None), ("", None), (None, None)],
    ids=["version 2", "version 1", "an old kernel", "empty", "no file"],
)
def test_kills_for_want_of_memory_are_counted_where_the_system_says_so(
    tmp_path: Path, text: str | None, kills: int | None
) -> None:
    file = tmp_path / "memory.events"
    if text is not None:
        file.write_text(text)
    assert out_of_memory_kills((tmp_path / "missing", file)) == kills
