"""An API that is not well, or refuses: what is asked again, and what is said at once."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.clock import ManualClock
from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.connected_api import SELECTOR, connected
from helpers.kubernetes.job_objects import ready, task_pod
from helpers.late import Late
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.core.errors import (
    AccessError,
    ConfigurationError,
    NotFoundError,
    PeerLostError,
    RopewalkError,
)

client = Late("kubernetes.client")


@pytest.mark.parametrize(
    ("refused", "waited_s"),
    [
        (Refused(429, "slow down", "7"), 7),
        (Refused(503), 0.25),
        (Refused(cut=True), 0.25),
    ],
    ids=["429 says how long", "503", "cut"],
)
def test_it_is_asked_again_after_what_it_wants(
    cluster: KubernetesCluster, api: KubernetesApi, refused: Refused, waited_s: float
) -> None:
    clock = ManualClock()
    cluster.refusals = [refused]
    assert connected(cluster, clock=clock).list_all("Pod").items == []
    assert clock.now() == waited_s


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
         'apply Job digits-chief in namespace train: 500 failed to create typed patch object '
         '(train/digits-chief; batch/v1, Kind=Job): errors: .spec.template.spec.containers[0].env: '
         'duplicate entries for key [name="A"]'),
    ],
    ids=["a list with the same key twice"],
)  # fmt: skip
def test_what_is_no_object_of_its_kind_is_said_at_once(
    cluster: KubernetesCluster, api: KubernetesApi, body: dict[str, Any], said: str
) -> None:
    spec = {"template": {"spec": {"containers": [{"name": "ropewalk", **body}]}}}
    metadata = {"name": "digits-chief"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    with pytest.raises(ConfigurationError) as refused:
        api.apply(job)
    assert refused.value.message == said
    assert len(cluster.asked) == 1
    refusal = api.try_apply(job)
    assert refusal is not None
    assert not refusal.is_about_fixed_fields


def test_a_field_that_the_cluster_does_not_know_says_which_version_it_needs(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    text = (
        "failed to create typed patch object (train/digits-chief; batch/v1, Kind=Job): .spec."
        'template.spec.containers[name="ropewalk"].lifecycle.preStop.sleep: field not declared in '
        "schema"
    )
    cluster.refusals = [Refused(500, text, method="PATCH", path="digits-chief")]
    with pytest.raises(ConfigurationError) as refused:
        apply_job(api, digits())
    assert refused.value.message.startswith("nothing was changed: apply Job digits-chief")
    assert refused.value.message.endswith(
        "The cluster does not know this field: Kubernetes has all of a job since 1.30; of a JobSet "
        "or a TrainJob the controller may be too old"
    )


def test_a_count_of_a_quota_that_two_change_at_once_is_tried_again(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    text = (
        'Operation cannot be fulfilled on resourcequotas "team": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    cluster.refusals = [Refused(409, text, method="PATCH", path="digits-worker")]
    assert {each.what for each in apply_job(api, digits())} == {"applied"}


def test_what_is_no_api_server_is_named_in_one_sentence(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    cluster.refusals = [Refused(404, empty=True)]
    with pytest.raises(ConfigurationError) as refused:
        api.list_all("Pod")
    assert refused.value.message == (
        "list Pods in namespace train: 404 Not Found. This is no answer of a Kubernetes API: check "
        f"the server of the context ({cluster.url}), and the proxy (HTTPS_PROXY, NO_PROXY)"
    )


def test_one_that_stays_away_ends_the_tries(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    cluster.refusals = [Refused(503, "etcd is down")] * 20
    with pytest.raises(PeerLostError, match=r"HTTP 503.*list Pods in namespace train.*etcd"):
        connected(cluster, clock=ManualClock()).list_all("Pod")


@pytest.mark.parametrize(
    ("code", "message", "kind", "said"),
    [
        (401, "no", AccessError, "Log in again"),
        (400, "no", ConfigurationError, "400 no"),
        (403, "exceeded quota: team", AccessError, "policy of the cluster or a quota refuses it"),
        (
            403,
            'pods is forbidden: User "system:serviceaccount:ci:deployer" cannot list resource '
            '"pods" in API group "" in the namespace "train"',
            AccessError,
            "`kubectl -n train create rolebinding ropewalk-viewer-deployer "
            "--role=ropewalk-viewer --serviceaccount=ci:deployer`",
        ),
        (
            403,
            'jobs.batch is forbidden: User "ann@example.com" cannot patch resource "jobs" in API '
            'group "batch" in the namespace "train"',
            AccessError,
            "--role=ropewalk-operator --user=ann@example.com`",
        ),
        (
            403,
            'jobs.batch "digits-chief" is forbidden: unable to create new content in namespace '
            "train because it is being terminated",
            ConfigurationError,
            "namespace train is being deleted; make it anew when it is gone",
        ),
        (
            403,
            'roles.rbac.authorization.k8s.io "digits-ps" is forbidden: user "ann" '
            '(groups=["users"]) is attempting to grant RBAC permissions not currently held:\n'
            '{APIGroups:["apps"], Resources:["statefulsets/scale"], Verbs:["patch"]}',
            AccessError,
            "the chief's account gets rights that you do not have yourself; ask for the newest "
            "ropewalk-operator of deploy/k8s/rbac",
        ),
    ],
    ids=["401", "400", "403 quota", "403 service account", "403 user", "403 ends", "403 grant"],
)
def test_what_waiting_does_not_mend_is_said_at_once(
    cluster: KubernetesCluster,
    api: KubernetesApi,
    code: int,
    message: str,
    kind: type[RopewalkError],
    said: str,
) -> None:
    cluster.refusals = [Refused(code, message)]
    with pytest.raises(kind, match=re.escape(said)):
        api.list_all("Pod")
    assert len(cluster.asked) == 1


def test_a_server_that_is_not_there_is_one_sentence_within_seconds(api: KubernetesApi) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    clock = ManualClock()
    server = client.Configuration(host=f"http://127.0.0.1:{port}")
    server.retries = 0
    nowhere = KubernetesApi(client.ApiClient(server), "train", clock)
    with pytest.raises(PeerLostError) as lost:
        nowhere.list_all("Pod")
    assert lost.value.message == (
        f"the Kubernetes API server at http://127.0.0.1:{port} cannot be reached: connection "
        "refused; check that the cluster runs, and the context (`kubectl config current-context`)"
    )
    assert clock.now() < 5


def test_a_server_that_has_answered_is_waited_for_longer(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    clock = ManualClock()
    api = connected(cluster, clock=clock)
    assert api.list_all("Pod").items == []
    cluster.refusals = [Refused(cut=True)] * 6
    assert api.list_all("Pod").items == []
    assert clock.now() > 5


def test_a_namespace_that_is_missing_is_named(run: Callable[..., Result]) -> None:
    said = run("status", "--job", str(DIGITS), "--namespace", "typo")
    assert isinstance(said.exception, NotFoundError)
    assert "kubectl create namespace typo" in said.exception.message
    assert said.exception.exit_code == 9
    for command in (["apply"], ["delete"], ["scale", "3"], ["logs", "-f"], ["list"]):
        job = [] if command == ["list"] else ["--job", str(DIGITS)]
        refused = run(*command, *job, "--namespace", "typo")
        assert isinstance(refused.exception, NotFoundError), command


@pytest.mark.parametrize("flags", [[], ["--watch"]], ids=["once", "watch"])
def test_the_status_of_a_job_that_is_not_there_says_so_and_fails(
    run: Callable[..., Result], flags: list[str]
) -> None:
    said = run("status", "--name", "typo", *flags)
    assert isinstance(said.exception, SystemExit)
    assert said.exception.code == 9
    assert "typo: Absent: there is no such job here" in said.output


def test_the_namespace_of_the_command_wins_over_that_of_the_file(
    cluster: KubernetesCluster, run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "ropewalk.yaml"
    file.write_text(DIGITS.read_text() + "kubernetes: {namespace: elsewhere}\n")
    assert "no namespace elsewhere" in str(run("apply", "--job", str(file)).exception)
    assert run("apply", "--job", str(file), "--namespace", "train").exception is None
    service = cluster.get("Service", "digits-tasks")
    assert service is not None
    assert service["metadata"]["namespace"] == "train"


def test_a_context_that_is_missing_is_named(run: Callable[..., Result]) -> None:
    said = run("status", "--job", str(DIGITS), "--context", "there")
    assert isinstance(said.exception, ConfigurationError)
    assert "no such context; there are here" in said.exception.message


def test_long_lists_come_in_pages(cluster: KubernetesCluster) -> None:
    api = connected(cluster, page=2)
    for index in range(5):
        cluster.put("Pod", task_pod("worker", index, ready()))
    assert len(api.list_all("Pod", SELECTOR).items) == 5
    assert len(cluster.asked) == 3
