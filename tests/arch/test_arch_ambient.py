"""No test depends on what a person has set for a terminal."""

import os
import subprocess
import sys

from helpers import ambient
from helpers.waiting import scaled


def test_what_is_set_for_a_terminal_is_forgotten_and_the_rest_is_kept() -> None:
    environment = {
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "de_DE",
        "LANG": "C",
        "PATH": "/bin",
        "CI": "1",
    }
    ambient.forget(environment)
    assert environment == {"PATH": "/bin", "CI": "1"}


def test_nothing_of_it_is_left_in_this_run_and_its_processes() -> None:
    before = dict(os.environ)
    ambient.forget(os.environ)
    assert dict(os.environ) == before
    code = "import sys; print(sys.stdout.write_through, sys.stdout.encoding)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=scaled(20),
    ).stdout  # fmt: skip
    assert shown == "False utf-8\n"
