"""``ropewalk k8s apply --code``: a job's code in ConfigMaps, and what becomes of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from helpers.kubernetes.cluster import KubernetesCluster
from ropewalk.core.errors import ConfigurationError

FILE = """\
name: digits
image: ropewalk:0.1.0
program: train.py
security: {mode: insecure}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "ropewalk.yaml").write_text(FILE)
    (folder / "train.py").write_text("print('first')\n")
    return folder


@pytest.fixture
def apply(run: Callable[..., Result], project: Path) -> Callable[..., Result]:
    def apply(*more: str) -> Result:
        job = str(project / "ropewalk.yaml")
        return run("apply", "--job", job, "--code", str(project), *more)

    return apply


def code_in(cluster: KubernetesCluster) -> list[str]:
    return [name for kind, name in cluster.names() if kind == "ConfigMap"]


def test_code_is_applied_before_the_pods_that_mount_it(
    cluster: KubernetesCluster, apply: Callable[..., Result]
) -> None:
    said = apply()
    assert said.exception is None, said.exception
    (name,) = code_in(cluster)
    assert said.output.startswith(f"ConfigMap {name} applied\n")
    assert "warning" not in said.output, "what is applied too is not missing"
    again = apply()
    assert again.exception is None, again.exception
    assert code_in(cluster) == [name]


def test_other_code_leaves_a_running_job_alone_until_it_is_replaced(
    cluster: KubernetesCluster, apply: Callable[..., Result], project: Path
) -> None:
    apply()
    (before,) = code_in(cluster)
    (project / "train.py").write_text("print('second')\n")
    refused = apply().exception
    assert isinstance(refused, ConfigurationError)
    assert "nothing was changed" in refused.message
    again = f"--code {project} --replace --job {project / 'ropewalk.yaml'} -n train"
    assert f"`ropewalk k8s apply {again}`" in refused.message
    assert code_in(cluster) == [before]
    replaced = apply("--replace")
    assert replaced.exception is None, replaced.exception
    assert f"ConfigMap {before} deleted" in replaced.output
    (after,) = code_in(cluster)
    assert after != before


def test_code_goes_with_its_job(
    cluster: KubernetesCluster, apply: Callable[..., Result], run: Callable[..., Result]
) -> None:
    apply()
    run("delete", "--name", "digits")
    assert code_in(cluster) == []


def test_code_that_cannot_be_sent_asks_nothing_of_the_cluster(
    cluster: KubernetesCluster, apply: Callable[..., Result], project: Path
) -> None:
    (project / "requirements.txt").write_text("torch\n")
    assert "--image-has-requirements" in str(apply().exception)
    assert cluster.asked == []
    assert apply("--image-has-requirements").exception is None


def test_render_shows_it(run: Callable[..., Result], project: Path) -> None:
    said = run("render", "--job", str(project / "ropewalk.yaml"), "--code", str(project))
    assert said.output.count("kind: ConfigMap") == 1
    assert "binaryData" in said.output


def test_a_job_file_in_the_folder_of_the_code_can_be_changed_and_applied_again(
    cluster: KubernetesCluster, apply: Callable[..., Result], project: Path
) -> None:
    """A comment changes nothing, and numbers are not another program."""
    apply()
    before = code_in(cluster)
    workers = "roles: {worker: {count: 3}, ps: {count: 1, resources: {memory: 2Gi}}}\n"
    (project / "ropewalk.yaml").write_text(f"# Three from today on.\n{FILE}{workers}")
    again = apply()
    assert again.exception is None, again.exception
    assert code_in(cluster) == before
    job = cluster.get("Job", "digits-worker")
    assert job is not None
    assert job["spec"]["completions"] == 3
    ps = cluster.get("StatefulSet", "digits-ps")
    assert ps is not None
    (container,) = ps["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "2Gi"


def test_a_job_file_behind_a_link_is_no_part_of_the_code_and_others_of_its_name_are(
    run: Callable[..., Result], project: Path
) -> None:
    (project / "trial").mkdir()
    (project / "trial" / "ropewalk.yaml").write_text("read by the program\n")
    (project / "job.yaml").symlink_to("ropewalk.yaml")

    def digest() -> str:
        job = ("--job", str(project / "job.yaml"))
        return run("render", *job, "--code", str(project)).output.partition("-code-")[2][:10]

    first = digest()
    (project / "ropewalk.yaml").write_text(f"{FILE}# more\n")
    assert digest() == first
    (project / "trial" / "ropewalk.yaml").write_text("with other numbers\n")
    assert digest() != first
