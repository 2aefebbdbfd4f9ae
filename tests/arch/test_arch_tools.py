"""No test looks for a program by itself: what is missing is counted in one list."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers import tools
from helpers.processes import ROOT
from helpers.waiting import scaled

TESTS = ROOT / "tests"
HELPER = TESTS / "helpers" / "tools.py"
POSIX = {"sh", "sleep", "true"}  # every machine that runs the tests has them
STARTS = {"run", "Popen", "check_call", "check_output"}


def trees(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Of the files in which one of these words is."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if path != HELPER and any(word in text for word in words):
            yield path, ast.parse(text)


def test_programs_are_looked_for_in_one_place() -> None:
    for path, tree in trees("which", "find_executable"):
        for node in ast.walk(tree):
            looked = (isinstance(node, ast.Attribute) and node.attr == "which") or (
                isinstance(node, ast.ImportFrom)
                and any(each.name in ("which", "find_executable") for each in node.names)
            )
            assert not looked, f"{path.relative_to(ROOT)}: mark the test `needs(…)` instead"


def test_a_test_that_starts_a_program_says_that_it_needs_it() -> None:
    seen = set()
    for path, tree in trees("subprocess", "processes"):
        if not path.name.startswith("test_"):
            continue
        said = [tools.named(name) for name in _needs(tree)]
        known = {program for need in said for program in (*need.programs, *need.any_of)}
        for program in _started(tree):
            seen.add(program)
            assert program in known | POSIX, f"{path.relative_to(ROOT)} starts {program}"
    assert {"git", "kubectl", "srun"} <= seen  # so something was found


def _needs(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.needs":
            yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))


def _started(tree: ast.Module) -> Iterator[str]:
    """The programs that are written as the first word of a list."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if name in STARTS and node.args and isinstance(node.args[0], ast.List):
            first = node.args[0].elts[0]
            if isinstance(first, ast.Constant):
                yield str(first.value)


# -- the list, and the tests that a machine with more tools has left ---------------------------

TEST = "tests/unit/deploy/test_compose.py"


def pytest_run(path: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST, *arguments],
        env={**os.environ, "PATH": str(path)},
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=scaled(60),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_test_without_its_program_is_skipped_and_counted_at_the_end(tmp_path: Path) -> None:
    code, said = pytest_run(tmp_path)
    assert code == 0, said
    *_, title, listed, _ = said.splitlines()
    assert "missing tools" in title
    assert listed == "podman: 1 test"


def test_those_that_need_more_than_a_path_run_alone(tmp_path: Path) -> None:
    code, said = pytest_run(tmp_path, f"--needing-more-than={tmp_path}")
    assert code == 0, said
    assert "1 skipped" in said.splitlines()[-1]
    assert "passed" not in said


def test_a_program_counts_where_it_is_in_the_path_alone(tmp_path: Path) -> None:
    need = tools.Need(("one", "two"), any_of=("a", "b"))
    for name in ("one", "two"):
        assert not need.has_programs(str(tmp_path))
        program = tmp_path / name
        program.touch(mode=0o755)
    assert not need.has_programs(str(tmp_path))
    (tmp_path / "b").touch(mode=0o755)
    assert need.has_programs(str(tmp_path))
    assert not need.is_met()


def test_the_list_begins_with_what_would_run_most() -> None:
    said = [(tools.PROPERTY, name) for name in ("podman", "root", "root")]
    assert tools.missing_lines([*said, ("other", "x")]) == [
        "root: 2 tests (run as root)", "podman: 1 test"
    ]  # fmt: skip
