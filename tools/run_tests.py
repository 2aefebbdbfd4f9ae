"""Run the test suite, and what failed of it once more with the machine to itself.

Several hundred tests start clusters of real processes and bound how long things take; on a machine
that others use too, one of twelve thousand may fail without a defect. So up to :data:`MOST`
failures are tried again, one after the other. One that fails again fails the run; one that does not
is named at the end, since a test that needs two tries is a test to mend. More failures are no
accident and are not tried again.

Every process of the run may keep the bytecode that it compiles, whatever PYTHONDONTWRITEBYTECODE
says: without it, each worker of the run rewrites the assertions of 400 modules, half of what
collecting costs, and each process of a cluster compiles Windlass. On a fresh checkout the tests are
collected once beforehand, in as many parts as there are processors: workers that begin at once
would all compile the same modules.

    python tools/run_tests.py [arguments of pytest]
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 5
_FAILED = 1  # pytest's exit code if tests have failed; others are errors of its use
_LAST_FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; returns the exit code."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _LAST_FAILED.unlink(missing_ok=True)
    print("left out: bridges to frameworks (make test-bridges), long runs (make soak)", flush=True)
    if not _has_paths(arguments):
        _compile_tests()
    code = _pytest(*arguments)
    failed = _last_failed()
    if code != _FAILED or not 0 < len(failed) <= MOST:
        return code
    print(f"\nOnce more, one after the other: {len(failed)} that failed", flush=True)
    code = _pytest("-n", "0", *failed)
    still = _last_failed()
    for name in failed:
        if name not in still:
            print(f"PASSED ONLY THE SECOND TIME, to be mended: {name}")
    return code


def _has_paths(arguments: list[str]) -> bool:
    return any((ROOT / each.partition("::")[0]).exists() for each in arguments)


def _compile_tests() -> None:
    """Collect the tests in parts, at the same time, unless a run has kept their bytecode."""
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda file: file.stat().st_size)
    missing = [file for file in files if not list(_kept(file))]
    if len(missing) < len(files) / 2:
        return
    parts = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collecting = [
        subprocess.Popen(
            [*command, *map(str, missing[part::parts])],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the run itself shows what cannot be collected
        )
        for part in range(parts)
    ]
    for process in collecting:
        process.wait()


def _kept(file: Path) -> Iterator[Path]:
    return (file.parent / "__pycache__").glob(f"{file.stem}.*-pytest-*.pyc")


def _pytest(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False
    ).returncode


def _last_failed() -> list[str]:
    if not _LAST_FAILED.exists():
        return []
    return list(json.loads(_LAST_FAILED.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
