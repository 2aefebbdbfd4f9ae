"""Code without an image: how it is packed for Kubernetes, and found by a container again."""

import base64
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.kubernetes.manifest_lints import problems
from helpers.kubernetes.manifests import environment_of, pod_templates
from helpers.waiting import scaled
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.reading import parse_job
from ropewalk.annexes.kubernetes.code import MOST_PARTS, PART_BYTES, ShippedCode, pack_code
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.core.errors import ConfigurationError, ProjectError, ProjectTooLargeError
from ropewalk.core.exit_codes import ExitCode

Json = dict[str, Any]
PROGRAM = "import os, beside\nprint(beside.TEXT, open('data.txt').read(), end='')\n"


def job(program: str = "train.py") -> JobFile:
    return parse_job(f"name: a\nimage: b\nprogram: {program}\nsecurity: {{mode: insecure}}\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "beside.py").write_text("TEXT = 'found'\n")
    (folder / "data.txt").write_text("data\n")
    return folder


def parts_of(objects: list[Json]) -> list[Json]:
    return [each for each in objects if each["kind"] == "ConfigMap"]


def data_of(maps: list[Json]) -> dict[str, bytes]:
    """What the kubelet writes into the folder of the parts."""
    return {
        key: base64.b64decode(text) for each in maps for key, text in each["binaryData"].items()
    }


def variables(objects: list[Json]) -> dict[str, str]:
    (first, *_) = pod_templates(tuple(objects))
    (container,) = first.spec["containers"]
    return environment_of(container, first.labels, "train", {})


def test_a_project_goes_into_a_config_map_that_every_pod_mounts(project: Path) -> None:
    code = pack_code(project, job())
    objects = manifests(job(), code=code)
    assert problems(tuple(objects)) == []
    (made,) = parts_of(objects)
    assert objects[0] is made, "it is there before the pods"
    assert made["immutable"]
    assert made["metadata"]["name"] == f"a-code-{code.package.digest[:10]}-0"
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "code"
    assert data_of([made]) == {"part-00": code.package.data}
    for kind in pod_templates(tuple(objects)):
        (container,) = kind.spec["containers"]
        assert container["workingDir"] == "/run/ropewalk/code", kind.owner
        assert kind.spec["volumes"][-1]["projected"]["sources"] == [
            {"configMap": {"name": made["metadata"]["name"]}}
        ]
    assert variables(objects)["ROPEWALK_CODE_DIGEST"] == code.package.digest
    again = manifests(job(), code=pack_code(project, job()))
    assert again == objects, "the same files are the same objects"


def test_a_larger_project_is_cut_into_parts_that_an_object_may_hold(project: Path) -> None:
    noise = random.Random(1).randbytes(2 * PART_BYTES)
    (project / "noise").write_bytes(noise)
    code = pack_code(project, job())
    made = parts_of(manifests(job(), code=code))
    assert [each["metadata"]["name"][-2:] for each in made] == ["-0", "-1", "-2"]
    assert b"".join(data_of(made).values()) == code.package.data
    for each in made:
        assert len(json.dumps(each)) < 1.1 * 2**20  # etcd takes 1.5 MiB, the API 3 MiB
        assert sum(map(len, data_of([each]).values())) <= 2**20  # of all values of a ConfigMap


def test_a_project_that_does_not_fit_says_what_to_do(project: Path) -> None:
    (project / "weights.bin").write_bytes(random.Random(1).randbytes(MOST_PARTS * PART_BYTES))
    with pytest.raises(ProjectTooLargeError, match=r"weights\.bin \(6291456 bytes\).*\.ropewalki"):
        pack_code(project, job())


@pytest.mark.parametrize("program", ["other.py", "/app/train.py"])
def test_a_program_that_is_not_sent_is_refused(project: Path, program: str) -> None:
    with pytest.raises(ProjectError, match=f"{program} is not in the project"):
        pack_code(project, job(program))


def test_packages_that_are_declared_are_refused_unless_the_image_has_them(project: Path) -> None:
    (project / "requirements.txt").write_text("numpy\nropewalk[security]\nClick\n")
    pack_code(project, job())  # every image with Ropewalk has these
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["jax>=0.4"]\n')
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml of .* needs jax.*--image-has"):
        pack_code(project, job())
    pack_code(project, job(), image_has_requirements=True)
    (project / ".ropewalkignore").write_text("pyproject.toml\n")
    pack_code(project, job())


def test_a_private_key_stays_at_the_desk(project: Path) -> None:
    (project / "credentials").mkdir()
    (project / "credentials" / "tls.key").write_text("-----BEGIN PRIVATE KEY-----\nabc\n")
    with pytest.raises(ProjectError, match=r"credentials/tls\.key of .* is a private key"):
        pack_code(project, job())
    (project / ".ropewalkignore").write_text("credentials/\n")
    pack_code(project, job())


# -- in the container ------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """A container with the code of a job, as the kubelet starts it; its code, output, errors."""

    def run(code: ShippedCode, change: Callable[[bytes], bytes] = lambda data: data) -> Any:
        objects = manifests(job(), code=code)
        mounted, working = tmp_path / "packed", tmp_path / "work"
        for folder in (mounted, working):
            folder.mkdir(exist_ok=True)
        for name, data in data_of(parts_of(objects)).items():
            (mounted / name).write_bytes(change(data))
        given = variables(objects)
        environment = {
            **os.environ,
            "ROPEWALK_SUPERVISE": "true",
            "ROPEWALK_CODE_DIGEST": given["ROPEWALK_CODE_DIGEST"],
            "ROPEWALK_CODE_PARTS": str(mounted),
        }
        command = [*processes.ROPEWALK, "run", "train.py"]
        return processes.run(command, timeout_s=scaled(60), env=environment, cwd=working)

    return run


@pytest.mark.real_start
def test_a_container_unpacks_it_once_and_runs_the_program_in_its_folder(
    project: Path, tmp_path: Path, start: Callable[..., tuple[int, str, str]]
) -> None:
    code = pack_code(project, job())
    for _ in range(2):  # the second is a container that is started again in its pod
        ended, output, errors = start(code)
        assert (ended, output) == (0, "found data\n"), errors
    (unpacked,) = (tmp_path / "work").iterdir()
    assert unpacked.name == code.package.digest[:12]


@pytest.mark.real_start
def test_code_that_was_changed_on_its_way_is_not_run(
    project: Path, tmp_path: Path, start: Callable[..., tuple[int, str, str]]
) -> None:
    ended, output, errors = start(pack_code(project, job()), lambda data: data[:-1])
    assert (ended, output) == (ExitCode.REFUSED, "")
    assert "it was changed or cut on its way" in errors
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.real_start
def test_an_image_that_lacks_what_the_program_declares_says_so(
    project: Path, start: Callable[..., tuple[int, str, str]]
) -> None:
    (project / "requirements.txt").write_text("numpy\nno-such-package>=2\n")
    ended, _, errors = start(pack_code(project, job(), image_has_requirements=True))
    assert ended == ExitCode.USAGE
    assert "the image lacks no-such-package, which requirements.txt" in errors
