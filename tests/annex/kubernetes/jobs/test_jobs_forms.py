"""``ropewalk k8s apply`` of a job that is one object, or whose pods are admitted as one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.job_objects import ready, started, task_pod
from helpers.kubernetes.pod_listings import Listed
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.parts import Gang
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.k8s_commands import headline
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.annexes.kubernetes.observing import observe
from ropewalk.core.errors import ConfigurationError


def with_gang(gang: Gang) -> JobFile:
    part = digits().kubernetes.model_copy(update={"gang": gang})
    return digits().model_copy(update={"kubernetes": part})


def controlled(cluster: KubernetesCluster) -> None:
    """What JobSet's controller makes: a Job for each role, with the labels of its template."""
    jobset = cluster.get("JobSet", "digits")
    assert jobset is not None
    owner = {"kind": "JobSet", "name": "digits", "controller": True}
    for job in jobset["spec"]["replicatedJobs"]:
        labels = job["template"]["metadata"]["labels"]
        metadata: Listed = {"labels": labels, "ownerReferences": [owner]}
        metadata["name"] = f"digits-{job['name']}-0"
        cluster.put("Job", {"metadata": metadata, "spec": job["template"]["spec"]})


def test_a_jobset_is_applied_looked_at_and_deleted(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result]
) -> None:
    said = run("apply", "--job", str(DIGITS), "--as", "jobset")
    assert said.exception is None, said.exception
    assert "JobSet digits applied" in said.output
    kinds = {kind for kind, _ in cluster.names()}
    assert not {"Job", "StatefulSet", "Service"} & kinds, "its controller makes them"
    assert headline(observe(api, "digits")).startswith(
        "digits: Pending: its JobSet has no Jobs yet"
    )
    controlled(cluster)
    cluster.put("Pod", task_pod("ps", 1, ready()))
    status = observe(api, "digits")
    assert {line.task: line.state for line in status.tasks}["ps:1"] == "Running"
    assert len(status.tasks) == 6
    again = run("apply", "--job", str(DIGITS), "--as", "jobset")
    assert again.exception is None, again.exception
    scaled = run("scale", "3", "--name", "digits")
    assert "one object, a JobSet, whose numbers of pods are fixed" in str(scaled.exception)
    deleted = run("delete", "--name", "digits")
    assert "JobSet digits deleted" in deleted.output
    assert cluster.get("JobSet", "digits") is None


def test_a_trainjob_goes_before_its_runtime(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result]
) -> None:
    apply_job(api, digits(), Form.TRAINJOB)
    cluster.asked.clear()
    run("delete", "--name", "digits")
    deleted = [each.path.split("/")[-2] for each in cluster.asked if each.method == "DELETE"]
    assert deleted.index("trainjobs") < deleted.index("trainingruntimes")


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("there", Form)
def test_a_job_is_not_there_in_two_forms(
    cluster: KubernetesCluster, api: KubernetesApi, there: Form, form: Form
) -> None:
    if there is Form.OBJECTS:
        started(cluster)
    else:
        apply_job(api, digits(), Form.JOBSET)
        controlled(cluster)
    if there is Form.TRAINJOB:
        cluster.put("TrainJob", manifests(digits(), Form.TRAINJOB)[-1])
        cluster.put("TrainingRuntime", manifests(digits(), Form.TRAINJOB)[-2])
    if form is there:
        apply_job(api, digits(), form)
        return
    cluster.asked.clear()
    with pytest.raises(ConfigurationError, match=rf"--as {there}.*`ropewalk k8s delete"):
        apply_job(api, digits(), form)
    assert {each.method for each in cluster.asked} == {"GET"}


@pytest.mark.parametrize(
    ("job", "form", "method", "path", "said"),
    [
        pytest.param(
            digits(), Form.JOBSET, "PATCH", "jobsets/digits", "no JobSets; JobSet's controller", id="JobSet"
        ),
        pytest.param(
            digits(), Form.TRAINJOB, "PATCH", "trainingruntimes/digits",
            "no TrainingRuntimes; Kubeflow Trainer",
            id="TrainJob",
        ),
        pytest.param(
            with_gang(Gang(by="volcano")), Form.OBJECTS, "PATCH", "podgroups/digits",
            "no PodGroups; the scheduler that kubernetes.gang names", id="PodGroup",
        ),
    ],
)  # fmt: skip
def test_what_the_cluster_does_not_know_is_said_and_nothing_is_changed(
    cluster: KubernetesCluster,
    api: KubernetesApi,
    job: JobFile,
    form: Form,
    method: str,
    path: str,
    said: str,
) -> None:
    cluster.refusals = [Refused(404, "404 page not found", method=method, path=path)]
    with pytest.raises(ConfigurationError, match=f"^nothing was changed: this cluster has {said}"):
        apply_job(api, job, form)
    assert {kind for kind, _ in cluster.names()} == {"StorageClass"}


def test_a_set_that_cannot_change_says_how_to_replace_it(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits(), Form.JOBSET)
    text = (
        'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs: Invalid value: '
        "field is immutable"
    )
    cluster.refusals = [Refused(403, text, path="jobsets/digits")]
    with pytest.raises(ConfigurationError, match=r"JobSet digits would .*--as jobset --replace"):
        apply_job(api, digits(), Form.JOBSET)


def test_a_trainjob_that_is_there_keeps_its_runtime_and_that_is_said(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    for _ in range(2):
        apply_job(api, digits(), Form.TRAINJOB)
    before = {name: cluster.get(*name) for name in cluster.names()}
    other = digits().model_copy(update={"image": "ropewalk-digits:2"})
    with pytest.raises(
        ConfigurationError, match=r"keeps .* `ropewalk k8s apply --as trainjob --re"
    ):
        apply_job(api, other, Form.TRAINJOB)
    assert {name: cluster.get(*name) for name in cluster.names()} == before
    apply_job(api, other, Form.TRAINJOB, replace=True)
    live = cluster.get("TrainJob", "digits")
    assert live != before["TrainJob", "digits"]


@pytest.mark.parametrize(
    ("by", "group"),
    [
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1"),
        ("volcano", "scheduling.volcano.sh/v1beta1"),
    ],
)
def test_a_pod_group_comes_before_its_pods_and_goes_with_them(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result], by: str, group: str
) -> None:
    done = apply_job(api, with_gang(Gang.model_validate({"by": by})))
    kinds = [each.kind for each in done]
    assert kinds.index("PodGroup") < kinds.index("StatefulSet")
    (path,) = {each.path for each in cluster.asked if "podgroups" in each.path}
    assert path == f"/apis/{group}/namespaces/train/podgroups/digits"
    run("delete", "--name", "digits")
    assert cluster.get("PodGroup", "digits") is None


def test_a_job_of_another_size_is_another_gang(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    job = with_gang(Gang(by="kueue", queue="training"))
    apply_job(api, job)
    with pytest.raises(ConfigurationError, match=r"spec\.template.*--replace"):
        apply_job(api, job.with_counts({"worker": 3}))


def test_render_has_every_form(run: Callable[..., Result], tmp_path: Path) -> None:
    for form, kind in (("objects", "StatefulSet"), ("jobset", "JobSet"), ("trainjob", "TrainJob")):
        said = run("render", "--job", str(DIGITS), "--as", form)
        assert f"\nkind: {kind}\n" in said.output
