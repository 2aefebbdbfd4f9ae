"""docs/job-file.md says what is: its file is the example's, its table has every field."""

import re
import shlex

import click
import pytest

from helpers.jobfile import digits
from helpers.processes import ROOT
from ropewalk.annexes.jobfile import pod_part
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.parts import Gang, KubernetesPart, SlurmPart, Storage
from ropewalk.annexes.jobfile.pod_part import Part
from ropewalk.annexes.jobfile.reading import parse_job
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.launch import cli

MODELS = [
    JobFile, KubernetesPart, SlurmPart, Storage, pod_part.ProbeTimes, Gang,
]  # fmt: skip
PAGE = (ROOT / "docs" / "job-file.md").read_text()


def test_the_file_of_the_page_is_that_of_the_example() -> None:
    block, pods = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert parse_job(block) == digits()
    job = parse_job(f"name: a\nimage: b\nprogram: c.py\n{pods}")
    assert {each["name"] for each in job.pod("worker").pod["volumes"]} == {"data", "scratch"}
    assert {each["name"] for each in job.pod("ps").pod["volumes"]} == {"data"}
    assert [each["kind"] for each in manifests(job)].count("Job") == 2


@pytest.mark.parametrize("model", MODELS)
def test_every_field_is_named(model: type[Part]) -> None:
    for name in model.model_fields:
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("job-file.md", marks=pytest.mark.annex("certificates")),
        pytest.param("kubernetes.md", marks=pytest.mark.annex("service")),
    ],
)
def test_every_flag_of_a_command_is_one(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    lines = re.findall(r"^\$ (ropewalk [^\n>|#]*)", text, re.M)
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(line.removesuffix("&"))[1:]
        command: click.Command = cli.ropewalk
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, line
            command = found
        command.make_parser(click.Context(command)).parse_args(words)  # raises NoSuchOption


def test_every_command_of_the_page_is_one() -> None:
    commands = set(re.findall(r"ropewalk (k8s|job|compose|slurm) ([a-z]+)", PAGE))
    assert len(commands) >= 10
    for group, name in commands:
        found = cli.ropewalk.get_command(click.Context(cli.ropewalk), group)
        assert isinstance(found, click.Group)
        assert found.get_command(click.Context(found), name), f"ropewalk {group} {name}"
