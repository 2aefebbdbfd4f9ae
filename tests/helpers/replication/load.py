"""A machine that is busy: processes that compute, at the priority of those that are tested."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Ends with who started it, however that ends.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have so many processes compute as long as the block runs."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            started.append(subprocess.Popen([sys.executable, "-c", _BUSY]))  # noqa: PERF401
        yield
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait(10)
