"""Put defects into copies of the source, one by one, and tell which of them the tests miss.

    python tools/mutants.py [--list tests/mutants.toml] [WORD …]

WORDs choose the defects whose name or file contains one. The exit code is 1 if a defect survived,
or if its text is not in the source any more. A copy is made of the files that git knows, as they
are in the working tree.

A defect counts as caught if its tests fail, and not if they cannot be collected: those first pass
on a copy without a defect.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 300.0
# pytest's own: 0 passed, 1 failed; the others are errors of the run.
_VERDICTS = {0: "SURVIVED", 1: "caught"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect: in ``file``, ``new`` instead of ``old``; ``tests`` should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def read_mutants(path: Path) -> list[Mutant]:
    """The defects of a list."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]


def copy_tree(target: Path) -> None:
    """The working tree's files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and (source.is_symlink() or source.is_file()):
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code of pytest, and the line that tells how it ended."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        # The installed package is the working tree's; the copy's own pytest settings come first.
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "HYPOTHESIS_PROFILE": "verdict"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"still running after {_TIMEOUT_S:.0f} s"
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAILED ")]
    return done.returncode, (failed or lines or [done.stderr])[-1].removeprefix("FAILED ")


def try_mutant(tree: Path, mutant: Mutant) -> tuple[str, str]:
    """The verdict on a defect, and a word about it. The tree is as before afterwards."""
    path = tree / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return "STALE", f"{mutant.old!r} is {source.count(mutant.old)} times in {mutant.file}"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        code, word = run_tests(tree, mutant.tests)
    finally:
        path.write_text(source)
    return _VERDICTS.get(code, "ERROR"), word


def main() -> int:
    """Run the defects; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", type=Path, default=ROOT / "tests" / "mutants.toml")
    parser.add_argument("words", nargs="*", metavar="WORD")
    given = parser.parse_args()
    mutants = [
        each
        for each in read_mutants(given.list)
        if not given.words or any(word in each.name or word in each.file for word in given.words)
    ]
    if not mutants:
        parser.error("no defect has such a word in its name or file")
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        code, word = run_tests(tree, sorted({test for each in mutants for test in each.tests}))
        if code != 0:
            print(f"without a defect, the tests do not pass: {word}")
            return 1
        for mutant in mutants:
            began = time.monotonic()
            verdict, word = try_mutant(tree, mutant)
            verdicts.append(verdict)
            took_s = time.monotonic() - began
            print(f"{verdict:<9}{took_s:4.0f} s  {mutant.file}: {mutant.name}\n{'':17}{word}")
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
    print(f"{len(verdicts)} defects: {counts}")
    return 0 if set(verdicts) <= {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
