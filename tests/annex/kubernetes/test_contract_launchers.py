"""One interface for all launchers: a dry run shows what a start uses, and starts nothing."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import serve_cluster
from ropewalk.annexes.jobfile.compose import ComposeLauncher
from ropewalk.annexes.jobfile.job_commands import Launcher, launch
from ropewalk.annexes.jobfile.slurm import SlurmLauncher
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import KubernetesLauncher
from ropewalk.core.errors import ConfigurationError
from ropewalk.launch import cli


class Tools:
    """False tools in the path, which note how they were called and what they read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, body: str = "") -> None:
        path = self.folder / name
        path.write_text(
            f'#!/bin/bash\nprintf "%s " "$@" >> {self.folder}/{name}.calls\n'
            f"echo >> {self.folder}/{name}.calls\ncat > {self.folder}/{name}.input\n{body}\n"
        )
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def read(self, name: str) -> str:
        return (self.folder / f"{name}.input").read_text()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    made = Tools(folder)
    made.make("docker", 'case "$*" in *wait*) exit 7;; esac')
    made.make("sbatch", "echo '4711;cluster'")
    return made


@contextmanager
def kubernetes(tools: Tools) -> Iterator[tuple[Launcher, Callable[[], list[Any]]]]:
    client = pytest.importorskip("kubernetes").client
    with serve_cluster() as cluster:
        settings = client.Configuration(host=cluster.url)
        api = KubernetesApi(client.ApiClient(settings), "train")

        def started() -> list[Any]:
            # Every object is tried first.
            patches = [each for each in cluster.asked if each.method == "PATCH"]
            return [each.body for each in patches if "dryRun" not in each.query]

        yield KubernetesLauncher(api), started


@contextmanager
def compose(tools: Tools) -> Iterator[tuple[Launcher, Callable[[], list[Any]]]]:
    def started() -> list[Any]:
        return [yaml.safe_load(tools.read("docker"))] if tools.calls("docker") else []

    yield ComposeLauncher(DIGITS.parent), started


@contextmanager
def slurm(tools: Tools) -> Iterator[tuple[Launcher, Callable[[], list[Any]]]]:
    def started() -> list[Any]:
        return [tools.read("sbatch")] if tools.calls("sbatch") else []

    yield SlurmLauncher(DIGITS.parent), started


@pytest.mark.parametrize("make", [kubernetes, compose, slurm], ids=lambda make: make.__name__)
def test_a_start_uses_what_a_dry_run_shows(
    make: Any, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with make(tools) as (launcher, started):
        code, text = launch(launcher, digits(), dry_run=True)
        assert code == 0
        assert started() == []
        code, said = launch(launcher, digits(), dry_run=False)
        assert said == ""
        shown = [text] if make is slurm else list(yaml.safe_load_all(text))
        used = started()
        for each in used if make is kubernetes else ():
            assert each["metadata"].pop("namespace") == "train"
        assert used == shown
        # The tasks' own end is that of the command where it waits for them.
        assert code == (7 if make is compose else 0)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.ropewalk, arguments, standalone_mode=False)


def test_compose_waits_for_the_chief(tools: Tools) -> None:
    said = run("compose", "up", "--job", str(DIGITS))
    assert isinstance(said.exception, SystemExit)
    assert said.exception.code == 7
    up, wait = tools.calls("docker")
    assert up.endswith("up ")
    assert wait.endswith("wait chief-0 ")
    assert f"--project-directory {DIGITS.parent}" in up


def test_slurm_says_the_number_of_the_job_and_where_its_output_goes(tools: Tools) -> None:
    said = run("slurm", "submit", "--job", str(DIGITS))
    assert said.exception is None, said.exception
    assert "submitted as 4711; its output goes to digits-4711.log" in said.output
    assert tools.calls("sbatch") == ["--parsable "]
    shown = run("slurm", "submit", "--dry-run", "--job", str(DIGITS)).output
    assert shown == run("slurm", "render", "--job", str(DIGITS)).output
    assert len(tools.calls("sbatch")) == 1


def test_what_sbatch_refuses_is_shown(tools: Tools) -> None:
    tools.make("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    said = run("slurm", "submit", "--job", str(DIGITS))
    assert isinstance(said.exception, ConfigurationError)
    assert "invalid partition specified: gpu" in said.exception.message


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("slurm", "submit"), "sbatch is not in the path"),
        (("compose", "up"), "docker is not in the path"),
    ],
    ids=["Slurm", "compose"],
)
def test_a_tool_that_is_missing_is_named(
    command: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = run(*command, "--job", str(DIGITS))
    assert isinstance(found.exception, ConfigurationError)
    assert said in found.exception.message


def test_local_shows_its_processes_and_flags_win_over_the_file() -> None:
    said = run("local", "--job", str(DIGITS), "--dry-run", "--workers", "3", "--ps", "1",
               "--no-evaluator", "--save-every-steps", "7")  # fmt: skip
    assert said.exception is None
    lines = [line for line in said.output.splitlines() if not line.startswith("#")]
    assert [line.partition(": ")[0] for line in lines] == [
        "ps:0", "chief:0", "worker:0", "worker:1", "worker:2",
    ]  # fmt: skip
    assert all("ROPEWALK_SAVE_EVERY_STEPS=7" in line for line in lines)
    assert lines[0].endswith(f"ropewalk run {DIGITS.parent / 'train.py'}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--job", str(DIGITS), "train.py"], "--job .* says what runs; take train.py away"),
        ([], "what shall run"),
        (["--dry-run", "train.py"], "--dry-run belongs to --job"),
        (["--job", str(DIGITS), "--workers", "0", "--no-chief"], "nobody trains"),
    ],
    ids=["both", "neither", "dry run", "nobody"],
)
def test_what_does_not_fit_is_refused(arguments: list[str], said: str) -> None:
    found = run("local", *arguments)
    assert isinstance(found.exception, ConfigurationError)
    assert re.search(said, found.exception.message)
