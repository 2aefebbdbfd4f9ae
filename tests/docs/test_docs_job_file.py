"""docs/job-file.md says what is: its file is the example's, its table has every field."""

import re

import click
import pytest

from helpers.job_objects import ROOT, digits
from windlass.launch import cli
from windlass.launch.job.model import JobFile
from windlass.launch.job.parts import KubernetesPart, SlurmPart, Storage
from windlass.launch.job.reading import parse_job

PAGE = (ROOT / "docs" / "job-file.md").read_text()


def test_the_file_of_the_page_is_that_of_the_example() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert parse_job(block) == digits()


@pytest.mark.parametrize("model", [JobFile, KubernetesPart, SlurmPart, Storage])
def test_every_field_is_named(model: type[JobFile]) -> None:
    for name in model.model_fields:
        assert f"`{name}`" in PAGE, name


def test_every_command_of_the_page_is_one() -> None:
    commands = set(re.findall(r"windlass (k8s|job|compose|slurm) ([a-z]+)", PAGE))
    assert len(commands) >= 10
    for group, name in commands:
        found = cli.windlass.get_command(click.Context(cli.windlass), group)
        assert isinstance(found, click.Group)
        assert name in found.commands, f"windlass {group} {name}"
