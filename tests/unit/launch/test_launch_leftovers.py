"""Processes that a task has detached end with it."""

import os
import subprocess
import sys

from ropewalk.launch.processes.executor import end_detached


def test_what_a_task_has_detached_is_ended_and_nothing_else() -> None:
    command = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]

    def start(tf_config: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TF_CONFIG": tf_config},
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    mine, other = (start(f"of {name} in {os.getpid()}") for name in ("mine", "other"))
    with mine, other:
        assert end_detached(f"of mine in {os.getpid()}") == 1
        assert mine.wait(10) == -9
        assert other.poll() is None
        other.kill()
