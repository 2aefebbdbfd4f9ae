"""What a process must be allowed to have before it begins."""

import resource

import pytest

from helpers.calls import Calls
from ropewalk.core.errors import ConfigurationError
from ropewalk.worker.process import surroundings as limits
from ropewalk.worker.process.surroundings import check_limits

INFINITY = resource.RLIM_INFINITY


@pytest.fixture
def allowed(calls: Calls) -> dict[str, int]:
    """Limits of this process, as the test sets them."""
    given = {"files": 65_536, "space": INFINITY}
    calls.after(limits, "raise_limit", lambda _: given["files"])
    calls.after(resource, "getrlimit", lambda *_: (given["space"], INFINITY))
    return given


def test_plenty_is_enough(allowed: dict[str, int]) -> None:
    check_limits()
    check_limits(tasks=1000)
    allowed["files"], allowed["space"] = 256, 2_000_000_000
    check_limits()


@pytest.mark.parametrize(
    ("files", "tasks", "words"),
    [
        (64, 0, "may have 64 open files, and a task needs 256"),
        (260, 2, "may have 260 open files, and a launcher of 2 tasks needs 264"),
    ],
)
def test_too_few_open_files_are_told_with_both_numbers(
    allowed: dict[str, int], files: int, tasks: int, words: str
) -> None:
    allowed["files"] = files
    with pytest.raises(ConfigurationError, match=words):
        check_limits(tasks)


def test_too_little_address_space_is_told_with_both_numbers(allowed: dict[str, int]) -> None:
    allowed["space"] = 700_000_000
    with pytest.raises(ConfigurationError, match="700 MB of address space, and a task needs 2000"):
        check_limits()
