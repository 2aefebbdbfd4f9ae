"""A job whose lost pods are replaced at once: StatefulSets, and a result in the job's ConfigMap."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster
from helpers.kubernetes.job_objects import ready, task_pod
from helpers.kubernetes.manifest_lints import problems
from helpers.late import Late
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.reading import read_job
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.annexes.kubernetes.observing import observe
from ropewalk.annexes.kubernetes.removal import Done, delete_all
from ropewalk.annexes.kubernetes.scaling import documents_to_apply, read_scale
from ropewalk.core.errors import ConfigurationError

kubernetes_validate = Late("kubernetes_validate")  # knows the schemas
KUBERNETES = "1.34"
SETS = ("ps", "chief", "worker")


def at_once(**changes: Any) -> JobFile:
    part = digits().kubernetes.model_copy(update={"lost_pods": "at-once", **changes})
    return digits().model_copy(update={"kubernetes": part})


def in_sync(job: JobFile) -> JobFile:
    """The same job without ps."""
    return job.with_counts({"ps": 0})


def set_of(cluster: KubernetesCluster, role: str) -> dict[str, Any]:
    found = cluster.get("StatefulSet", f"digits-{role}")
    assert found is not None
    return found


def running(cluster: KubernetesCluster) -> None:
    for role, count in (("ps", 2), ("chief", 1), ("worker", 2)):
        for index in range(count):
            cluster.put("Pod", task_pod(role, index, ready()))


def end(cluster: KubernetesCluster, code: int, reason: str = "") -> None:
    """What the chief's container does when the job is over for good."""
    record = cluster.get("ConfigMap", "digits-status")
    assert record is not None
    cluster.put("ConfigMap", {**record, "data": {"ended": str(code), "reason": reason}})
    for role in SETS:
        found = set_of(cluster, role)
        cluster.put("StatefulSet", {**found, "spec": {**found["spec"], "replicas": 0}})
    for kind, name in cluster.names():
        if kind == "Pod":
            cluster.remove(kind, name)


@pytest.mark.parametrize("job", [at_once(), in_sync(at_once(status=True))], ids=["ps", "in sync"])
def test_stateful_sets_make_the_pods_of_all_that_are_waited_for(job: JobFile) -> None:
    made = manifests(job)
    kinds = {each["metadata"]["name"]: each["kind"] for each in made}
    assert kinds["digits-chief"] == kinds["digits-worker"] == "StatefulSet"
    assert kinds["digits-evaluator"] == "Job", "nobody waits for it"
    assert problems(tuple(made)) == []
    for each in made:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        spec = each["spec"] if each["kind"] == "StatefulSet" else {}
        if spec and each["metadata"]["name"] != "digits-ps":
            variables = {
                one["name"]: one.get("value")
                for one in spec["template"]["spec"]["containers"][0]["env"]
            }
            assert variables["ROPEWALK_HOLDS"] == "true"
            assert spec["serviceName"] == "digits-tasks"
            assert "restartPolicy" not in spec["template"]["spec"], "Always, as it must be"
        elif spec:
            assert "ROPEWALK_HOLDS" not in str(spec)


def test_the_chief_may_end_these_pods_and_say_how_the_job_ended() -> None:
    [role] = [each for each in manifests(at_once()) if each["kind"] == "Role"]
    rights = {
        (rule["resources"][0], *rule["verbs"]): rule.get("resourceNames", [])
        for rule in role["rules"]
    }
    assert rights == {
        ("configmaps", "get", "patch"): ["digits-status"],
        ("statefulsets/scale", "patch"): ["digits-ps", "digits-chief", "digits-worker"],
        ("jobs", "patch"): ["digits-evaluator"],
        ("statefulsets", "get"): ["digits-chief"],
        ("pods", "get"): ["digits-ps-0", "digits-ps-1", "digits-worker-0", "digits-worker-1"],
    }


@pytest.mark.parametrize("lost_pods", ["wait", "at-once"])
@pytest.mark.parametrize("counts", [{"chief": 0, "ps": 0}, {"ps": 0}, {}], ids=str)
def test_no_right_is_to_objects_of_any_name(lost_pods: str, counts: dict[str, int]) -> None:
    job = at_once(lost_pods=lost_pods, end_job=True).with_counts(counts)
    [role] = [each for each in manifests(job) if each["kind"] == "Role"]
    assert all(rule["resourceNames"] for rule in role["rules"])
    scaled = {name for rule in role["rules"][:2] for name in rule["resourceNames"]}
    assert counts or lost_pods == "wait" or "digits-chief" in scaled
    assert "digits-chief" not in scaled or job.count("chief")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lost_pods: at-once, deadline_s: 60", "only Jobs have it"),
        ("lost_pods: at-once, keep_s: 60", "only Jobs have it"),
    ],
    ids=["deadline", "time to live"],
)
def test_what_only_jobs_have_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "ropewalk.yaml"
    file.write_text(DIGITS.read_text() + f"\nkubernetes: {{{text}}}\n")
    with pytest.raises(ConfigurationError, match=said) as raised:
        read_job(file)
    assert "ropewalk.yaml:" in str(raised.value)


def test_one_object_has_no_stateful_sets() -> None:
    with pytest.raises(ConfigurationError, match="which a jobset has not"):
        manifests(at_once(), Form.JOBSET)


def test_the_status_says_what_the_chief_has_written(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, at_once())
    assert observe(api, "digits").phase == "Pending"
    running(cluster)
    assert observe(api, "digits").phase == "Running"
    end(cluster, 0)
    status = observe(api, "digits")
    assert (status.phase, status.exit_code, status.is_over) == ("Done", 0, True)
    end(cluster, 10, "JOB_FAILED (10): /job:worker/task:1 failed: ValueError: bad record 17")
    status = observe(api, "digits")
    assert (status.phase, status.exit_code) == ("Failed", 10)
    assert "bad record 17" in status.reason


def test_a_job_that_a_person_has_scaled_to_none_is_suspended(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, at_once())
    api.patch("StatefulSet", "digits-chief", {"spec": {"replicas": 0}})
    status = observe(api, "digits")
    assert (status.phase, status.exit_code) == ("Suspended", None)
    assert "scaled to none" in status.reason


def test_a_job_that_is_over_is_begun_anew_by_replace_alone(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, at_once())
    end(cluster, 0)
    with pytest.raises(ConfigurationError, match="digits is done, and applying it again starts"):
        apply_job(api, at_once())
    apply_job(api, at_once(), replace=True)
    assert set_of(cluster, "chief")["spec"]["replicas"] == 1
    record = cluster.get("ConfigMap", "digits-status")
    assert record is not None
    assert "data" not in record, "the next chief would believe that its job is over"


def test_an_end_that_is_left_from_before_does_not_keep_a_job_from_starting(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, at_once())
    end(cluster, 0)
    for role in SETS:
        cluster.remove("StatefulSet", f"digits-{role}")  # by hand, and the ConfigMap was forgotten
    cluster.remove("Job", "digits-evaluator")
    apply_job(api, at_once())
    assert observe(api, "digits").phase == "Pending"


def test_another_image_does_not_roll_a_job_that_runs(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    job = at_once().with_counts({"evaluator": 0})
    apply_job(api, job)
    before = cluster.names(), set_of(cluster, "worker")
    other = job.model_copy(update={"image": "ropewalk-digits:2"})
    with pytest.raises(ConfigurationError, match="nothing was changed: StatefulSet digits-"):
        apply_job(api, other)
    assert (cluster.names(), set_of(cluster, "worker")) == before
    apply_job(api, job)
    apply_job(api, other, replace=True)
    [container] = set_of(cluster, "worker")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "ropewalk-digits:2"


@pytest.mark.parametrize(("before", "after"), [(digits(), at_once()), (at_once(), digits())])
def test_jobs_and_stateful_sets_do_not_make_the_same_pods(
    cluster: KubernetesCluster, api: KubernetesApi, before: JobFile, after: JobFile
) -> None:
    apply_job(api, before)
    names = cluster.names()
    with pytest.raises(ConfigurationError, match=r"digits-chief is there as a .*lost_pods"):
        apply_job(api, after)
    assert cluster.names() == names
    apply_job(api, after, replace=True)
    made = [kind for kind, name in cluster.names() if name == "digits-chief"]
    assert ("Job" in made) == (after.kubernetes.lost_pods == "wait")


def test_workers_are_scaled_and_stay_so(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    apply_job(api, at_once())
    plan = read_scale(api, "digits", 4)
    assert (plan.now, plan.then, plan.kind) == (2, 4, "StatefulSet")
    api.patch(plan.kind, "digits-worker", plan.body)
    assert set_of(cluster, "worker")["spec"]["replicas"] == 4
    apply_job(api, at_once())
    assert set_of(cluster, "worker")["spec"]["replicas"] == 4
    documents = documents_to_apply(
        at_once().with_counts({"worker": 3}), set_of(cluster, "worker") | {"kind": "StatefulSet"}
    )
    [workers] = [each for each in documents if each["metadata"]["name"] == "digits-worker"]
    assert workers["spec"]["replicas"] == 3, "the file has changed"


def test_all_of_it_is_deleted(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    apply_job(api, at_once())
    done = delete_all(api, "digits", checkpoints=True)
    assert Done("StatefulSet", "digits-chief", "deleted") in done
    assert {kind for kind, _ in cluster.names()} == {"StorageClass"}


def test_the_command_line_follows_such_a_job_to_its_end(
    cluster: KubernetesCluster, api: KubernetesApi, run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "ropewalk.yaml"
    file.write_text(DIGITS.read_text() + "\nkubernetes: {lost_pods: at-once}\n")
    said = run("apply", "--job", str(file))
    assert said.exception is None, said.exception
    end(cluster, 0)
    watched = run("status", "--name", "digits", "--watch")
    assert watched.exit_code == 0
    assert watched.output.startswith("digits: Done")
