"""What a host of the repository runs is what the Makefile and .ci/run do, on the Pythons we name.

Workflows, forms and hooks cannot be tried here; what they name can be looked up.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [
    path
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    if path.name != "config.yml"
]
HOOKS = ROOT / ".pre-commit-config.yaml"
_INPUTS = {"textarea", "input", "dropdown", "checkboxes"}
_ACTION = re.compile(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)|\./\.github/workflows/\w+\.yml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for key, job in read(path)["jobs"].items():
            yield f"{path.name}: {key}", job


JOBS = dict(jobs())


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job.get("steps", ()) if "run" in step]


def test_every_supported_python_is_tested_and_no_other() -> None:
    (versions,) = (
        job["strategy"]["matrix"]["python"] for job in JOBS.values() if "strategy" in job
    )
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert versions == named
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_the_tests_of_a_host_are_those_of_the_repository() -> None:
    assert commands(JOBS["ci.yml: test"]) == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_nothing_is_published_that_was_not_tested_and_checked() -> None:
    assert set(JOBS["release.yml: publish"]["needs"]) == {"test", "build"}
    assert JOBS["release.yml: test"]["uses"] == "./.github/workflows/ci.yml"
    assert "make dist" in commands(JOBS["release.yml: build"])
    (recipe,) = re.findall(r"^dist:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert "twine check --strict" in recipe


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_ends_by_itself_and_takes_actions_of_a_stated_version(job: dict[str, Any]) -> None:
    assert "uses" in job or job["timeout-minutes"] <= 120
    steps = [*job.get("steps", ()), job]
    assert [
        step["uses"] for step in steps if not _ACTION.fullmatch(step.get("uses", "a/b@v1"))
    ] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_and_no_more_unless_a_job_says_so(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_questions_of_known_kinds(path: Path) -> None:
    form = read(path)
    assert form["name"]
    assert form["description"]
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in questions} <= _INPUTS
    assert len({part["id"] for part in questions}) == len(questions)
    assert all(part["attributes"]["label"] for part in questions)
    assert any(part.get("validations", {}).get("required") for part in questions)


def test_hooks_are_the_checks_of_the_makefile() -> None:
    (checks,) = re.findall(r"^CHECKS := (.+)$", MAKEFILE, re.MULTILINE)
    (repository,) = read(HOOKS)["repos"]
    hooks = {hook["id"]: hook["entry"] for hook in repository["hooks"]}
    assert repository["repo"] == "local"
    assert hooks == {check: f"make --no-print-directory {check}" for check in checks.split()}
