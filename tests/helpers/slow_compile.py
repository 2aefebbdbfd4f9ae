"""A process that compiles a kernel and does not come to an end."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers import processes

_PROGRAM = """
import sys
import time
import numpy as np
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.engine import jit
from ropewalk.engine.library import library

def stand_still(*arguments):
    print("compiling", flush=True)
    time.sleep(600)

jit.compile_function = stand_still
updates = {kernel.name: kernel for rule in built_in_rules() for kernel in rule.kernels}
library._load(updates.get(sys.argv[1], sys.argv[1]), np.dtype(np.float32))
"""


@contextlib.contextmanager
def compiling_for_ever(cache: Path, kernel: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process is compiling a kernel for float32 into a cache."""
    process = processes.start(
        [sys.executable, "-c", _PROGRAM, kernel],
        env={
            **os.environ,
            "PYTHONPATH": str(processes.ROOT / "src"),
            "ROPEWALK_KERNEL_CACHE": str(cache),
        },
        stdout=subprocess.PIPE,
    )
    with process:  # closes its output, and waits for it
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"compiling\n"
            yield process
        finally:
            process.kill()
