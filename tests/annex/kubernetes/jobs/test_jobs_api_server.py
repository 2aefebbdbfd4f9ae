"""The same, against etcd and kube-apiserver where ``KUBEBUILDER_ASSETS`` shows them.

What the fake server of the other tests refuses is held here against the real one.
"""

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.jobfile import digits
from helpers.kubernetes.api_server import client_of, serve_api
from helpers.kubernetes.manifests import BUILT, build, pod_templates
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.parts import Gang
from ropewalk.annexes.kubernetes.api import KINDS, KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.code import PART_BYTES, pack_code
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.observing import observe
from ropewalk.annexes.kubernetes.preflight import warnings
from ropewalk.annexes.kubernetes.removal import delete_all
from ropewalk.core.errors import ConfigurationError, IncompatibleError, NotFoundError

if find_spec("kubernetes") is None:
    pytest.skip("needs kubernetes", allow_module_level=True)
pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("etcd and kube-apiserver")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_api(tmp_path_factory.mktemp("api-server")) as address:
        yield address


@pytest.fixture
def real(url: str, request: pytest.FixtureRequest) -> KubernetesApi:
    """The API in a namespace of the test's own."""
    from kubernetes import client

    name = f"test-{abs(hash(request.node.name)) % 10**8}"
    connection = client_of(url)
    client.CoreV1Api(connection).create_namespace({"metadata": {"name": name}})
    return KubernetesApi(connection, name)


def changed(job: JobFile) -> JobFile:
    return job.model_copy(update={"image": "ropewalk-digits:2"})


@pytest.mark.parametrize("name", [each for each in BUILT if each not in ("base", "podmonitor")])
@pytest.mark.needs("kubectl or kustomize")
def test_every_overlay_is_accepted(real: KubernetesApi, name: str) -> None:
    objects = build(name)
    for each in objects:
        if each["kind"] in KINDS:
            refusal = real.try_apply(each)
            assert refusal is None, (each["kind"], each["metadata"]["name"], refusal)
    for kind in pod_templates(objects):  # those of custom resources, too
        if kind.job:
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "tried"},
                "spec": kind.job,
            }
            assert real.try_apply(job) is None


def test_code_of_several_parts_is_accepted(real: KubernetesApi, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('here')\n")
    (tmp_path / "noise").write_bytes(random.Random(1).randbytes(2 * PART_BYTES))
    code = pack_code(tmp_path, digits())
    assert len(code.names) == 3
    assert {each.what for each in apply_job(real, digits(), code=code)} == {"applied"}
    assert delete_all(real, "digits", checkpoints=True)


def test_pods_of_a_gang_are_accepted(real: KubernetesApi) -> None:
    gang = Gang(by="kueue", queue="training")
    part = digits().kubernetes.model_copy(update={"gang": gang})
    for each in manifests(digits().model_copy(update={"kubernetes": part})):
        assert real.try_apply(each) is None, each["metadata"]["name"]


def test_a_refused_apply_changes_nothing(real: KubernetesApi) -> None:
    def versions() -> list[str]:
        listed = [real.list_all(kind).items for kind in ("Job", "StatefulSet", "Service")]
        return [each["metadata"]["resourceVersion"] for items in listed for each in items]

    apply_job(real, digits())
    before = versions()
    with pytest.raises(
        ConfigurationError, match=r"^nothing was changed: .*spec\.template.*--replace"
    ):
        apply_job(real, changed(digits()))
    assert versions() == before
    assert {each.what for each in apply_job(real, changed(digits()), replace=True)} == {"applied"}
    (image,) = {
        each["spec"]["template"]["spec"]["containers"][0]["image"]
        for each in real.list_all("Job").items
    }
    assert image == "ropewalk-digits:2"


def test_what_others_own_is_a_conflict(real: KubernetesApi) -> None:
    from kubernetes import client

    apply_job(real, digits())
    apps = client.AppsV1Api(real._requests._client.client)
    apps.patch_namespaced_stateful_set_scale(
        "digits-ps", real.namespace, {"spec": {"replicas": 7}}, field_manager="autoscaler"
    )
    with pytest.raises(IncompatibleError, match=r"spec\.replicas.*autoscaler"):
        apply_job(real, digits())


def test_what_scale_has_set_is_changed_by_a_file_that_says_another_number(
    real: KubernetesApi,
) -> None:
    apply_job(real, digits())
    real.patch("Job", "digits-worker", {"spec": {"parallelism": 4, "completions": 4}})
    apply_job(real, digits().with_counts({"worker": 3}))
    live = real.get("Job", "digits-worker")
    assert live is not None
    assert live["spec"]["completions"] == 3


def test_a_job_whose_chief_writes_its_state_is_accepted(real: KubernetesApi) -> None:
    part = digits().kubernetes.model_copy(update={"status": True})
    job = digits().model_copy(update={"kubernetes": part})
    apply_job(real, job)
    assert observe(real, "digits").phase == "Pending"
    real.patch("ConfigMap", "digits-status", {"data": {"step": "7"}})
    apply_job(real, job)  # leaves what the chief has written
    assert observe(real, "digits").progress.step == "7"
    delete_all(real, "digits", checkpoints=True)
    assert real.list_all("Role").items == []


def test_a_namespace_that_is_missing_is_told(url: str) -> None:
    nowhere = KubernetesApi(client_of(url), "typo")
    for ask in (
        lambda: observe(nowhere, "digits"),
        lambda: apply_job(nowhere, digits()),
        lambda: warnings(nowhere, manifests(digits())),
    ):
        with pytest.raises(NotFoundError, match="no namespace typo"):
            ask()
