"""What a second try of failed tests makes of a run, and of the list of those that needed it."""

import datetime
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import ROOT

if not (ROOT / "tools").is_dir():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)

A, B = "tests/scenario/test_a.py::test_a[x]", "tests/fault/test_b.py::test_b"
CONTRACT = "tests/contract/test_c.py::test_c[tunnel]"
DAY = datetime.date(2026, 1, 2)


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("run_tests")
    for name in ("run_tests", "second_try"):
        sys.modules.pop(name, None)


@pytest.fixture
def second_try(run_tests: Any) -> Any:
    return run_tests.second_try


# -- decisions -------------------------------------------------------------------------------------


def test_a_first_appearance_passes_and_goes_on_the_list(second_try: Any) -> None:
    verdict = second_try.judge([A], [], {})
    assert verdict.passes
    assert verdict.additions == (A,)
    assert A in verdict.lines[0]


def test_a_second_appearance_fails_and_says_since_when(second_try: Any) -> None:
    verdict = second_try.judge([A, B], [], {A: "2026-01-02"})
    assert not verdict.passes
    assert verdict.additions == (B,)
    assert "AGAIN" in verdict.lines[0]
    assert "since 2026-01-02" in verdict.lines[0]


def test_what_fails_twice_fails_the_run_and_is_not_listed(second_try: Any) -> None:
    verdict = second_try.judge([A, B], [A], {A: "2026-01-02"})
    assert not verdict.passes
    assert verdict.additions == (B,)


def test_contract_tests_and_too_many_get_no_second_try(second_try: Any) -> None:
    assert second_try.to_try_again([A, B]) == [A, B]
    assert second_try.to_try_again([A, CONTRACT]) == []
    assert CONTRACT in second_try.refusal([A, CONTRACT])
    many = [f"{A}{n}" for n in range(second_try.MOST + 1)]
    assert second_try.to_try_again(many) == []
    assert f"{len(many)} have failed" in second_try.refusal(many)
    assert second_try.to_try_again(many[1:]) == many[1:]


@pytest.mark.parametrize("seen", ["", 'said "no"', "back\\slash", "é 💥 \x1b[1m", "x" * 1000])
def test_an_entry_is_read_as_it_was_written(second_try: Any, seen: str) -> None:
    text = "# words\n" + second_try.entry(A, seen, DAY) + second_try.entry(B, "", DAY)
    assert second_try.read(text) == {A: "2026-01-02", B: "2026-01-02"}
    assert len(text) < 600


def test_the_list_of_this_repository_is_one(second_try: Any) -> None:
    for name in second_try.read((ROOT / second_try.LIST).read_text()):
        assert (ROOT / name.partition("::")[0]).is_file(), f"{name} is gone; take it off the list"


# -- a run -----------------------------------------------------------------------------------------


class Runs:
    """In place of pytest: what each run of it fails with, in order."""

    def __init__(self, *failures: dict[str, str]) -> None:
        self.failures, self.arguments = list(failures), list[tuple[str, ...]]()

    def __call__(self, *arguments: str) -> tuple[int, dict[str, str]]:
        self.arguments.append(arguments)
        failed = self.failures.pop(0)
        return int(bool(failed)), failed


@pytest.fixture
def listed(run_tests: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    path = tmp_path / "tests" / "second_try.toml"
    path.parent.mkdir()
    path.write_text("# words\n")
    return path


def main(
    run_tests: Any,
    monkeypatch: pytest.MonkeyPatch,
    *failures: dict[str, str],
    runs: Callable[..., tuple[int, dict[str, str]]] | None = None,
    flags: Sequence[str] = ("tests",),  # with a path nothing is compiled beforehand
) -> int:
    monkeypatch.setattr(run_tests, "_pytest", runs or Runs(*failures))
    return int(run_tests.main(list(flags)))


def test_a_race_passes_once_in_a_working_tree(
    run_tests: Any, listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(run_tests, monkeypatch, {A: "waited 30 s"}, {}) == 0
    assert 'seen = "waited 30 s"' in listed.read_text()
    assert main(run_tests, monkeypatch, {A: "waited 30 s"}, {}) == 1
    assert "PASSED ONLY THE SECOND TIME AGAIN" in capsys.readouterr().out
    assert listed.read_text().count("[[test]]") == 1


def test_ci_shows_the_entry_and_leaves_the_file_alone(
    run_tests: Any, listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("CI", "1")
    assert main(run_tests, monkeypatch, {A: "waited"}, {}) == 0
    assert f'[[test]]\nname = "{A}"' in capsys.readouterr().out
    assert listed.read_text() == "# words\n"


def test_a_failure_of_a_contract_fails_at_once(
    run_tests: Any, listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert main(run_tests, monkeypatch, {CONTRACT: "no"}) == 1
    assert "NO SECOND TRY" in capsys.readouterr().out


def test_that_no_test_needs_more_tools_is_no_failure(
    run_tests: Any, listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: str) -> tuple[int, dict[str, str]]:
        return 5, {}

    assert main(run_tests, monkeypatch, runs=ends, flags=["--needing-more-than=/bin"]) == 0
    assert main(run_tests, monkeypatch, runs=ends) == 5
