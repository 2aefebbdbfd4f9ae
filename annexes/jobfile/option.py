"""``--job FILE``: which job file a command reads."""

from typing import Any

import click

JOB_FILE = "ropewalk.yaml"


def job_option(command: Any) -> Any:
    """Add ``--job``, by default ``ropewalk.yaml`` here."""
    return click.option(
        "--job", "job_file", default=JOB_FILE, show_default=True, metavar="FILE",
        help="The job file.",
    )(command)  # fmt: skip
