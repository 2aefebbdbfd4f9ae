"""Run the tests without an annex: in a copy of the tree that lacks it and its tests.

Each annex is taken out in turn, with those that import it, as Kubernetes imports job files. What is
left should pass: unit tests, contracts, faults, scenarios and
the tests of the other annexes. Tests of the documentation and of the shape of the code are left
out, since they are about the whole tree.

    python tools/without_annex.py [ANNEX...] [-- ARGUMENTS OF PYTEST]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ABOUT_THE_WHOLE_TREE = ("tests/arch", "tests/docs")


def main(arguments: Sequence[str]) -> int:
    """Run pytest once for each annex; returns 1 if a run failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    failed = []
    for annex in arguments[:split] or annexes():
        build = ROOT / "build"  # not in /tmp, which pods of tests have of their own
        build.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"without-{annex}-", dir=build) as folder:
            gone = copy_without(annex, Path(folder))
            print(f"== without {', '.join(gone)}", flush=True)
            if run_tests(Path(folder), arguments[split + 1 :]):
                failed.append(annex)
    print(f"failed without: {', '.join(failed)}" if failed else "passed without each of them")
    return int(bool(failed))


def annexes() -> list[str]:
    """List the names of all annexes."""
    return sorted(path.parent.name for path in (ROOT / "annexes").glob("*/__init__.py"))


def copy_without(
    annex: str, to: Path, root: Path = ROOT, files: Iterable[Path] | None = None
) -> list[str]:
    """Copy files, but for an annex, those that import it, and their tests.

    Args:
        annex: Name of the annex.
        to: Folder for the copy.
        root: Tree to copy.
        files: Files of the tree; None: those that git knows.

    Returns:
        Names of the annexes that the copy lacks.
    """
    gone = [annex, *builds_on(annex, root / "annexes")]
    left_out = {Path(path) for name in gone for path in places(name)}
    for file in _tracked(root) if files is None else files:
        if not left_out & {file, *file.parents}:
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, to / file, follow_symlinks=False)
    return gone


def builds_on(annex: str, room: Path = ROOT / "annexes") -> list[str]:
    """List the annexes that import this one.

    Args:
        annex: Name of the annex.
        room: Folder of all annexes.
    """
    imports = re.compile(rf"^\s*from \.\.+{annex}[. ]", re.MULTILINE)
    files = (path for path in sorted(room.rglob("*.py")) if imports.search(path.read_text()))
    return sorted({path.relative_to(room).parts[0] for path in files} - {annex})


def places(annex: str) -> Iterator[str]:
    """List the paths that belong to an annex alone."""
    yield f"annexes/{annex}"
    yield f"tests/annex/{annex}"
    yield f"tests/{annex}"
    yield f"tests/helpers/{annex}"
    yield f"tests/helpers/{annex}.py"


def _tracked(root: Path) -> Iterable[Path]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True)
    return [Path(name) for name in listed.stdout.decode().split("\0") if name]


def run_tests(folder: Path, arguments: Sequence[str]) -> int:
    """Run pytest in a copy; returns its exit code."""
    ignored = [f"--ignore={path}" for path in _ABOUT_THE_WHOLE_TREE]
    command = [sys.executable, "-m", "pytest", "-q", *ignored, *arguments]
    # An editable installation would have the processes of tests import the whole tree.
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
