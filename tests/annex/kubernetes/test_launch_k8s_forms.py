"""One job file in every form that it has on Kubernetes, and its pods admitted as one."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.jobfile import digits
from helpers.kubernetes.golden import golden
from helpers.kubernetes.manifest_lints import FIELDS, problems, unknown_fields
from helpers.kubernetes.manifests import PodTemplate, environment_of, pod_templates
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.reading import parse_job
from ropewalk.annexes.jobfile.yaml_text import dump_documents
from ropewalk.annexes.kubernetes.job_end import is_the_end
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.annexes.kubernetes.preflight import total_of
from ropewalk.annexes.kubernetes.scaling import plan_scale
from ropewalk.annexes.kubernetes.status_objects import check_rendered
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.exit_codes import ExitCode

Json = dict[str, Any]
ONE_OBJECT = [Form.JOBSET, Form.TRAINJOB]
JOBS = {
    "digits": digits(),
    "in sync": digits().with_counts({"ps": 0, "evaluator": 0}),
    "no chief": digits().with_counts({"chief": 0}),
    "no workers": digits().with_counts({"worker": 0}),
    "metrics": digits().model_copy(update={"metrics": True}),
}


def with_gang(gang: str) -> JobFile:
    return parse_job(
        "name: a\nimage: b\nprogram: c.py\nsecurity: {mode: insecure}\n"
        f"kubernetes: {{namespace: train, gang: {{{gang}}}}}\n"
        "roles: {evaluator: {count: 1}}\n"
    )


def specs(made: list[Json]) -> list[Json]:
    """The JobSets that objects are, or will be made from."""
    found = {each["kind"]: each.get("spec", {}) for each in made}
    in_runtime = found.get("TrainingRuntime", {}).get("template", {}).get("spec")
    return [spec for spec in (found.get("JobSet"), in_runtime) if spec]


def templates(made: list[Json]) -> dict[str, PodTemplate]:
    return {each.labels["app.kubernetes.io/component"]: each for each in pod_templates(tuple(made))}


# -- one object --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ONE_OBJECT)
def test_a_job_is_rendered_as_it_was(form: Form) -> None:
    golden(f"digits.{form.value}.yaml", dump_documents(manifests(digits(), form)))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("form", ONE_OBJECT)
def test_it_has_no_mistake_that_was_found_in_manifests(name: str, form: Form) -> None:
    made = manifests(JOBS[name], form)
    assert problems(tuple(made)) == []
    assert [unknown_fields(each) for each in made if each["kind"] in FIELDS] == [[]] * (
        len(made) - 1
    )


def tasks(made: list[Json]) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Role, index and variables of every task."""
    for role, kind in templates(made).items():
        (container,) = kind.spec["containers"]
        for index in range(kind.count):
            yield role, index, environment_of(container, kind.labels, "train", {})


@pytest.mark.parametrize("form", ONE_OBJECT)
def test_pods_are_called_as_the_others_dial_them_and_as_certificates_name_them(form: Form) -> None:
    made = manifests(digits(), form)
    (spec,) = specs(made)
    domain = f"{spec['network']['subdomain']}.train.svc"
    assert domain == "digits-tasks.train.svc"  # as that of plain objects
    for role, index, variables in tasks(made):
        pod = f"{templates(made)[role].name}-{index}"
        dialed = variables["ROPEWALK_HOST_TEMPLATE"].format(role=role, index=index)
        assert dialed == f"{pod}.{domain}:2222"


@pytest.mark.parametrize("form", ONE_OBJECT)
def test_each_job_replaces_its_lost_pod_and_the_set_is_never_started_anew(form: Form) -> None:
    (spec,) = specs(manifests(digits(), form))
    assert "failurePolicy" not in spec
    plain = {e["metadata"]["name"]: e["spec"] for e in manifests(digits()) if e["kind"] == "Job"}
    for job in spec["replicatedJobs"]:
        made = job["template"]["spec"]
        assert (made["backoffLimitPerIndex"], made["maxFailedIndexes"]) == (10, 0)
        if job["name"] == "ps":
            continue
        for key, value in plain[f"digits-{job['name']}"].items():
            if key not in ("template", "podFailurePolicy"):
                assert made[key] == value, key


@pytest.mark.parametrize(
    ("name", "decisive"),
    [("digits", ["chief", "evaluator"]), ("in sync", ["chief"]), ("no chief", ["worker", "evaluat"
     "or"])],
)  # fmt: skip
def test_a_set_is_over_when_its_leader_and_its_evaluator_are(
    name: str, decisive: list[str]
) -> None:
    (spec,) = specs(manifests(JOBS[name], Form.JOBSET))
    assert spec["successPolicy"]["targetReplicatedJobs"] == decisive


def test_trainer_finds_the_container_and_counts_the_workers() -> None:
    made = manifests(digits(), Form.TRAINJOB)
    (spec,) = specs(made)
    for kind in pod_templates(tuple(made)):
        assert [container["name"] for container in kind.spec["containers"]] == ["node"]
    labels = {job["name"]: job["template"]["metadata"]["labels"] for job in spec["replicatedJobs"]}
    ancestor = "trainer.kubeflow.org/trainjob-ancestor-step"
    assert [role for role in labels if ancestor in labels[role]] == ["worker"]
    runtime, job = made[-2:]
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 2
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


@pytest.mark.parametrize("form", ONE_OBJECT)
def test_every_form_takes_as_much_of_a_quota(form: Form) -> None:
    plain, one = (total_of(manifests(digits(), each)) for each in (Form.OBJECTS, form))
    for key in ("pods", "requests.cpu", "limits.memory"):
        assert one[key] == plain[key] > 0


def test_the_chief_writes_the_jobs_state_there_too_and_ends_nothing() -> None:
    job = parse_job(
        "name: a\nimage: b\nprogram: c.py\nsecurity: {mode: insecure}\n"
        "kubernetes: {namespace: train, status: true, end_job: true, keep_s: 60}\n"
    )
    made = manifests(job, Form.JOBSET)
    (role,) = [each for each in made if each["kind"] == "Role"]
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == {
        "configmaps", "events"
    }  # fmt: skip
    chief = templates(made)["chief"].spec
    assert chief["serviceAccountName"] == "a-chief"
    names = {each["name"] for each in chief["containers"][0]["env"]}
    assert "ROPEWALK_STATUS_OBJECT" in names
    assert "ROPEWALK_ENDS_JOB" not in names
    (spec,) = specs(made)
    assert spec["ttlSecondsAfterFinished"] == 60
    assert "ttlSecondsAfterFinished" not in spec["replicatedJobs"][0]["template"]["spec"]


# -- all or nothing ----------------------------------------------------------------------------


def test_kueue_admits_the_pods_of_plain_objects_as_a_group() -> None:
    made = manifests(with_gang("by: kueue, queue: training"))
    assert problems(tuple(made)) == []
    for kind in templates(made).values():
        assert kind.labels["kueue.x-k8s.io/queue-name"] == "training"
        assert kind.labels["kueue.x-k8s.io/pod-group-name"] == "a"
        annotations = kind.template["metadata"]["annotations"]
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "4"
    for each in made:  # each alone would be admitted alone
        assert "kueue.x-k8s.io/queue-name" not in each["metadata"]["labels"], each["kind"]


@pytest.mark.parametrize("form", ONE_OBJECT)
def test_kueue_admits_one_object_as_that_object(form: Form) -> None:
    made = manifests(with_gang("by: kueue, queue: training"), form)
    labelled = [e["kind"] for e in made if "kueue.x-k8s.io/queue-name" in e["metadata"]["labels"]]
    assert labelled == ["JobSet" if form is Form.JOBSET else "TrainJob"]
    for kind in templates(made).values():
        assert "kueue" not in str(kind.template["metadata"])


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    ("gang", "version", "spec", "scheduler", "mark"),
    [
        pytest.param(
            "by: coscheduling, wait_s: 60", "scheduling.x-k8s.io/v1alpha1",
            {"minMember": 4, "scheduleTimeoutSeconds": 60}, "scheduler-plugins-scheduler",
            "'scheduling.x-k8s.io/pod-group': 'a'", id="coscheduling",
        ),
        pytest.param(
            "by: volcano, queue: q", "scheduling.volcano.sh/v1beta1",
            {"minMember": 4, "queue": "q"}, "volcano", "'scheduling.k8s.io/group-name': 'a'",
            id="volcano",
        ),
        pytest.param(
            "by: volcano, scheduler: own", "scheduling.volcano.sh/v1beta1", {"minMember": 4},
            "own", "'scheduling.k8s.io/group-name': 'a'", id="volcano of another name",
        ),
    ],
)  # fmt: skip
def test_a_scheduler_gets_a_group_of_all_pods(
    form: Form, gang: str, version: str, spec: Json, scheduler: str, mark: str
) -> None:
    made = manifests(with_gang(gang), form)
    (group,) = [each for each in made if each["kind"] == "PodGroup"]
    assert (group["apiVersion"], group["spec"]) == (version, spec)
    for kind in templates(made).values():
        assert kind.spec["schedulerName"] == scheduler
        assert mark in str(kind.template["metadata"])
    assert problems(tuple(made)) == []


def test_without_any_of_these_the_chief_frees_what_cannot_come() -> None:
    job = with_gang("by: chief, wait_s: 300")
    made = manifests(job)
    assert problems(tuple(made)) == []
    for role, _, variables in tasks(made):
        assert variables["ROPEWALK_JOIN_TIMEOUT_S"] == "300"
        assert ("ROPEWALK_ENDS_JOB" in variables) == (role == "chief")
    (role_,) = [each for each in made if each["kind"] == "Role"]
    named = [rule["resourceNames"] for rule in role_["rules"]]
    assert named == [["a-ps"], ["a-worker", "a-evaluator"], ["a-chief", "a-worker"], ["a-ps-0"]]
    for each in made:
        if each["kind"] == "Job":  # a new pod would wait as long, and hold as much
            failing = each["spec"]["podFailurePolicy"]["rules"][-1]["onExitCodes"]["values"]
            assert ExitCode.JOIN_TIMEOUT in failing
    without = job.model_copy(
        update={"kubernetes": job.kubernetes.model_copy(update={"namespace": ""})}
    )
    with pytest.raises(ConfigurationError, match=r"`kubernetes: \{gang: \{by: chief\}\}` the file"):
        check_rendered(without)
    check_rendered(without, Form.JOBSET)  # the set ends what is left


@pytest.mark.parametrize(
    ("code", "ends_job", "is_over"),
    [
        (ExitCode.JOIN_TIMEOUT, "incomplete", True),
        (ExitCode.JOIN_TIMEOUT, "true", False),
        (ExitCode.PEER_LOST, "incomplete", False),
        (0, "incomplete", True),
        (1, "true", True),
        (1, "", False),
    ],
)
def test_when_a_chief_ends_its_job(code: int, ends_job: str, is_over: bool) -> None:
    assert is_the_end(code, ends_job) == is_over


@pytest.mark.parametrize(
    ("gang", "said"),
    [
        ("by: kueue", "5:39: kubernetes.gang.by: kueue needs a queue"),
        ("by: kueue, queue: q, wait_s: 3", "5:60: kubernetes.gang.wait_s: kueue holds nothing"),
        ("by: chief, queue: q", "5:50: kubernetes.gang.queue: chief has no queues; take queue"),
        ("by: chief, scheduler: q", "5:50: kubernetes.gang.scheduler: chief leaves pods to"),
        ("by: magic", "5:43: kubernetes.gang.by: it should be 'kueue', 'coscheduling', 'volcano'"),
        ("queue: q", "kubernetes.gang.by: it is missing"),
        ("by: chief, quue: q", "5:50: kubernetes.gang.quue: there is no such field; did you mean"),
    ],
)
def test_a_mistake_has_its_place(gang: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        with_gang(gang)
    assert re.search(re.escape(said), caught.value.message), caught.value.message


def test_how_long_tasks_wait_is_said_once() -> None:
    text = (
        "name: a\nprogram: b.py\nkubernetes: {gang: {by: chief}}\nsettings: {join_timeout_s: 9}\n"
    )
    with pytest.raises(ConfigurationError, match=r"4:12: settings\.join_timeout_s: .*wait_s says"):
        parse_job(text)
    parse_job(text.replace("chief", "volcano"))


@pytest.mark.parametrize("gang", ["by: kueue, queue: q", "by: coscheduling", "by: volcano"])
def test_a_gang_is_not_scaled_while_it_is_counted(gang: str) -> None:
    made = manifests(with_gang(gang))
    (live,) = [each for each in made if each["metadata"]["name"] == "a-worker"]
    with pytest.raises(ConfigurationError, match=r"admitted as a whole.*--replace"):
        plan_scale(live, 3, has_ps=True)
