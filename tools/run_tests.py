"""Run the test suite, and what failed of it once more with the machine to itself.

Several hundred tests start clusters of real processes and bound how long things take; on a machine
that others use too, one of twelve thousand may fail without a defect. So a few failures are tried
again, one after the other. One that fails again fails the run; one that does not goes on a list,
and fails the run the next time (``second_try.py``).

Every process of the run may keep the bytecode that it compiles, whatever PYTHONDONTWRITEBYTECODE
says: without it, each worker of the run rewrites the assertions of 400 modules, half of what
collecting costs, and each process of a cluster compiles Ropewalk. On a fresh checkout the tests are
collected once beforehand, in as many parts as there are processors: workers that begin at once
would all compile the same modules.

    python tools/run_tests.py [arguments of pytest]
"""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import second_try

ROOT = Path(__file__).resolve().parents[1]
_FAILED = 1  # pytest's exit code if tests have failed; others are errors of its use
_NO_TESTS = 5
_NEEDING = "--needing-more-than="
_FAILURES = ROOT / ".pytest_cache/v/ropewalk/failures"  # written by tests/conftest.py


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; returns the exit code."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    selects = any(each.startswith(_NEEDING) for each in arguments)
    if not selects:
        print(
            "left out: bridges to frameworks (make test-bridges), long runs (make soak)", flush=True
        )
    if not selects and not _has_paths(arguments):
        _compile_tests()
    code, failed = _pytest(*arguments)
    if code == _NO_TESTS and selects:
        print("no test needs a tool that the PATH before lacks")
        return 0
    if code != _FAILED or not failed:
        return code
    tried = second_try.to_try_again(failed)
    if not tried:
        print(second_try.refusal(failed))
        return code
    print(f"\nOnce more, one after the other: {len(tried)} that failed", flush=True)
    code, still = _pytest("-n", "0", *tried)
    kept = ROOT / second_try.LIST
    verdict = second_try.judge(tried, still, second_try.read(kept.read_text()))
    today = datetime.datetime.now(datetime.UTC).date()
    additions = [second_try.entry(name, failed[name], today) for name in verdict.additions]
    print(*verdict.lines, *additions, sep="\n")
    if "CI" not in os.environ:  # there nobody commits it
        with kept.open("a") as stream:
            stream.writelines(additions)
    return code or (0 if verdict.passes else _FAILED)


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


def _pytest(*arguments: str) -> tuple[int, dict[str, str]]:
    """Run it; the exit code, and each failed test with the first line of why."""
    _FAILURES.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return code, json.loads(_FAILURES.read_text()) if _FAILURES.exists() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
