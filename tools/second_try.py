"""What a second try of failed tests means for the run: decisions, and the list that is kept.

A test that fails and passes when it is tried again, alone, has a race: in the test or in the code.
The first time that this is seen it goes on a tracked list, ``tests/second_try.toml``, and the run
passes; while it is on the list, the next such run fails. Whoever mends it removes it from there.

A contract test gets no second try: it says what every implementation promises, and a promise that
is kept sometimes is not kept.
"""

import datetime
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

MOST = 5  # more failures are no accident, and are not tried again
NO_SECOND_TRY = ("tests/contract/",)
LIST = "tests/second_try.toml"
_SEEN = 200  # characters


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a run whose failures were tried again.

    Attributes:
        passes: Whether the run does.
        additions: Tests that belong on the list now.
        lines: What to tell.
    """

    passes: bool
    additions: tuple[str, ...]
    lines: tuple[str, ...]


def to_try_again(failed: Collection[str]) -> list[str]:
    """Those that get a second try: all of them or none, as one that fails for sure decides."""
    if len(failed) > MOST or any(each.startswith(NO_SECOND_TRY) for each in failed):
        return []
    return list(failed)


def refusal(failed: Collection[str]) -> str:
    """Why there is no second try, for people."""
    contracts = [each for each in failed if each.startswith(NO_SECOND_TRY)]
    if contracts:
        return f"NO SECOND TRY: a contract test has failed: {', '.join(contracts)}"
    return f"NO SECOND TRY: {len(failed)} have failed, and more than {MOST} are no accident"


def judge(tried: Sequence[str], still: Collection[str], listed: Mapping[str, str]) -> Verdict:
    """Decide what became of the run.

    Args:
        tried: Tests that failed and were tried again.
        still: Those of them that failed again.
        listed: Tests on the list → the day on which they came there.
    """
    passed = [each for each in tried if each not in still]
    again = [each for each in passed if each in listed]
    additions = [each for each in passed if each not in listed]
    lines = [
        f"PASSED ONLY THE SECOND TIME AGAIN: {each} is in {LIST} since {listed[each]}, so the run"
        " fails: find the race, mend it, and take the test off the list"
        for each in again
    ]
    lines += [
        f"PASSED ONLY THE SECOND TIME, to be mended: {each}; commit what follows to {LIST}"
        for each in additions
    ]
    return Verdict(not still and not again, tuple(additions), tuple(lines))


def read(text: str) -> dict[str, str]:
    """The list: tests → the day on which they came there."""
    tests = tomllib.loads(text).get("test", [])
    return {each["name"]: str(each["date"]) for each in tests}


def entry(name: str, seen: str, today: datetime.date) -> str:
    """A test's entry on the list."""
    said = seen if len(seen) <= _SEEN else f"{seen[:_SEEN]}…"
    # Text of JSON is text of TOML, too.
    name, said = (json.dumps(each, ensure_ascii=False) for each in (name, said))
    return f"\n[[test]]\nname = {name}\ndate = {today.isoformat()}\nseen = {said}\n"
