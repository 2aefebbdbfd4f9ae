"""The compose file and the Dockerfile: what holds before anybody runs them."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.compose import FILE, services
from helpers.processes import ROOT
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.resolvers.template import VariablesClusterResolver
from ropewalk.core.settings import Settings

DOCKER = ROOT / "deploy" / "docker"
LOCKS = sorted(DOCKER.glob("requirements-*.lock"))


def test_every_service_knows_which_task_it_is() -> None:
    tasks = {name: each for name, each in services().items() if name != "credentials"}
    clusters = set()
    for name, service in tasks.items():
        assert service.said["hostname"] == name  # by which the others dial it
        task = resolve(VariablesClusterResolver(service.environment, hostname=name))
        assert f"{task.task.type}-{task.task.index}" == name
        clusters.add(str(task.spec.as_dict()))
    assert len(clusters) == 1
    assert sorted(tasks) == ["chief-0", "evaluator-0", "ps-0", "ps-1", "worker-0", "worker-1"]


def test_services_are_confined_and_published_to_this_machine_alone() -> None:
    for name, service in services().items():
        said = service.said
        assert said["read_only"] is True, name
        assert said["cap_drop"] == ["ALL"], name
        for port in said.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for path in service.volumes:
            assert not path.startswith("/credentials") or name == "credentials"
        if name != "credentials":
            assert service.healthcheck
            assert "ROPEWALK_INSECURE" not in service.environment
            said_grace_s = float(said["stop_grace_period"].removesuffix("s"))
            assert said_grace_s >= float(service.environment["ROPEWALK_LEAVE_GRACE_S"]) + 10


def test_secrets_are_files_and_each_role_has_its_own() -> None:
    for name, service in services().items():
        if name == "credentials":
            continue
        role = service.environment["ROPEWALK_ROLE"]
        assert service.volumes["/run/secrets"] == f"secrets-{role}"
        files = [key for key in Settings.model_fields if key.startswith(("tls_", "token_"))]
        for key in files:
            assert service.environment[f"ROPEWALK_{key.upper()}"].startswith("/run/secrets/")


@pytest.mark.needs("podman")  # whose version podman-compose asks for
def test_compose_itself_takes_the_file() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "podman_compose", "--file", str(FILE), "config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["services"]) == set(services())


def test_the_dockerfile_takes_files_that_the_context_has() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    rooms = {path.name for path in (ROOT / "src" / "ropewalk").iterdir() if path.is_symlink()}
    assert rooms <= kept  # an image without a room would hold a dangling link
    wanted = re.findall(r"^COPY (?!--from)(\S+) ", (DOCKER / "Dockerfile").read_text(), re.M)
    for path in wanted:
        assert path == "." or path.split("/")[0] in kept or path in kept, path


@pytest.mark.annex("kubernetes")
def test_the_dockerfile_compiles_modules_that_are_there() -> None:
    lists = re.findall(r"-c 'import ([^']+)'", (DOCKER / "Dockerfile").read_text())
    modules = {name for each in lists for name in each.split(", ") if name.startswith("ropewalk.")}
    assert modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_the_dockerfile_ends_as_a_user_with_a_number() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    for stage in ("runtime", "digits"):
        steps = text.split(f" AS {stage}\n")[1].split("\nFROM ")[0]
        assert re.findall(r"^USER (\S+)", steps, re.M) == ["10001:10001"]
    assert "requirements-${VARIANT}.lock" in text


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.stem for lock in LOCKS])
def test_lock_files_have_hashes_and_what_the_package_needs(lock: Path) -> None:
    text = lock.read_text()
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)", text, re.M)
    pinned = [(canonicalize_name(name), version) for name, version in found]
    blocks = re.split(r"^(?=[A-Za-z])", text, flags=re.M)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"^(--|http)", text, re.M)  # nor where they come from
    if lock.stem == "requirements-build":
        assert [name for name, _ in pinned] == ["setuptools"]
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["k8s"], *extras["security"]]
    if "digits" in lock.stem:
        needed += extras["examples"]
    if "gpu" in lock.stem:
        needed += extras["gpu"]
    for each in map(Requirement, needed):
        version = dict(pinned).get(canonicalize_name(each.name))
        assert version is not None, each
        assert each.specifier.contains(version), f"{each} in {lock.name}: {version}"
