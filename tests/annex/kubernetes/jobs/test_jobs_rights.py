"""The roles of ``deploy/k8s/rbac`` are enough for what they are for, and exec is not among it.

The requests are those that the commands have made; the rules are compared with them as RBAC does.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from helpers.jobfile import digits
from helpers.kubernetes.cluster import Asked, KubernetesCluster
from helpers.kubernetes.job_objects import ready, task_pod
from helpers.kubernetes.manifests import BUILT, K8S, build
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.parts import Gang
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.logs import read_logs
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.annexes.kubernetes.observing import ObjectFollower, list_jobs, observe
from ropewalk.annexes.kubernetes.preflight import warnings
from ropewalk.annexes.kubernetes.removal import delete_all

if find_spec("kubernetes") is None:
    pytest.skip("needs kubernetes", allow_module_level=True)

ROLES = {
    each["metadata"]["name"]: each["rules"]
    for each in yaml.safe_load_all((K8S / "rbac" / "roles.yaml").read_text())
}
VIEWER = ROLES["ropewalk-viewer"]
BOTH = [*VIEWER, *ROLES["ropewalk-operator"]]
# No Role can hold these: without them the command does without, or says what it may not do.
BEYOND = {("list", "storage.k8s.io", "storageclasses")}

Right = tuple[str, str, str]


def holds(rules: Iterable[dict[str, Any]], right: Right) -> bool:
    verb, group, resource = right
    return any(
        verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
        for rule in rules
        if "resourceNames" not in rule
    )


def rights_for(asked: Asked) -> set[Right]:
    """What RBAC wants for a request; an apply may make the object."""
    words = asked.path.strip("/").split("/")
    group, words = ("", words[2:]) if words[0] == "api" else (words[1], words[3:])
    if words[0] == "namespaces" and len(words) > 2:
        words = words[2:]
    name, below = ([*words[1:], "", ""])[:2]
    resource = "/".join(filter(None, (words[0], below)))
    if asked.method == "GET":
        verbs = ["get"] if name else ["watch" if asked.query.get("watch") else "list"]
    elif asked.method == "PATCH":
        verbs = ["patch", *(["create"] if "apply-patch" in asked.content_type else [])]
    else:
        verbs = [{"DELETE": "delete", "POST": "create"}[asked.method]]
    return {(verb, group, resource) for verb in verbs}


def lacking(rules: Iterable[dict[str, Any]], cluster: KubernetesCluster) -> set[Right]:
    wanted = {right for asked in cluster.asked for right in rights_for(asked)}
    return {right for right in wanted - BEYOND if not holds(rules, right)}


def with_part(**changes: Any) -> JobFile:
    part = digits().kubernetes.model_copy(update=changes)
    return digits().model_copy(update={"kubernetes": part})


def test_a_viewer_may_look(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    for each in manifests(digits()):
        cluster.put(each["kind"], each)
    cluster.put("Pod", task_pod("chief", 0, ready()))
    assert observe(api, "digits").phase == "Running"
    assert [row.name for row in list_jobs(api)] == ["digits"]
    assert list(read_logs(api, "digits", lambda _: True, -1)) == []
    follower = ObjectFollower(api, "Pod", "", 1).rounds()
    next(follower), next(follower)
    assert lacking(VIEWER, cluster) == set()


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        (Form.OBJECTS, {"status": True, "end_job": True}),
        (Form.OBJECTS, {"lost_pods": "at-once"}),
        (Form.OBJECTS, {"gang": Gang(by="coscheduling")}),
        (Form.OBJECTS, {"gang": Gang(by="volcano")}),
        (Form.JOBSET, {"status": True}),
        (Form.TRAINJOB, {}),
    ],
    ids=["account", "at once", "coscheduling", "volcano", "jobset", "trainjob"],
)
def test_an_operator_may_make_replace_scale_and_delete_jobs(
    cluster: KubernetesCluster, api: KubernetesApi, form: Form, changes: dict[str, Any]
) -> None:
    job = with_part(**changes)
    warnings(api, manifests(job, form))
    apply_job(api, job, form)
    apply_job(api, job, form, replace=True)
    if cluster.get("Job", "digits-worker"):
        api.patch("Job", "digits-worker", {"spec": {"parallelism": 3, "completions": 3}})
        api.patch("StatefulSet", "digits-ps", {"spec": {"replicas": 3}})
    delete_all(api, "digits", checkpoints=True)
    assert lacking(BOTH, cluster) == set()


@pytest.mark.parametrize(
    "job",
    [
        with_part(status=True, end_job=True),
        with_part(gang=Gang(by="chief")),
        with_part(status=True, lost_pods="at-once"),
    ],
    ids=["status and end_job", "gang", "at once"],
)
def test_an_operator_holds_what_a_chiefs_account_is_given(job: JobFile) -> None:
    # Kubernetes lets an account grant only rights that it holds itself.
    [role] = [each for each in manifests(job) if each["kind"] == "Role"]
    given = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {right for right in given if not holds(BOTH, right)} == set()


@pytest.mark.parametrize("name", [each for each in BUILT if each.startswith("overlays/")])
@pytest.mark.needs("kubectl or kustomize")
def test_an_operator_may_apply_every_overlay(name: str) -> None:
    lacks = {
        (verb, each["kind"])
        for each in build(name)
        for group in [each["apiVersion"].rpartition("/")[0]]
        for verb in ("get", "create", "patch", "delete")
        if not holds(BOTH, (verb, group, plural(each["kind"])))
    }
    assert lacks == set()


def plural(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("cy") else f"{name}s"


def test_commands_of_kubectl_that_pages_name_are_allowed() -> None:
    forwards: list[Right] = [(verb, "", "pods/portforward") for verb in ("get", "create")]
    scale: Right = ("patch", "apps", "statefulsets/scale")
    assert all(holds(VIEWER, each) for each in forwards)
    assert holds(BOTH, scale)
    assert not holds(BOTH, ("create", "", "pods/exec"))
