"""KubernetesClusterResolver through the official client, from an API server on loopback."""

import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.clock import ManualClock
from helpers.kubernetes.api import KubernetesApi, serve, use_kubeconfig
from helpers.kubernetes.pod_listings import (
    of_indexed_job,
    of_job_set,
    of_stateful_set,
    pulling,
    running,
    unschedulable,
)
from helpers.late import Late
from ropewalk.annexes.kubernetes.requests import own_namespace
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import (
    AccessError,
    ConfigurationError,
    JoinTimeoutError,
    RopewalkError,
)
from ropewalk.core.task import TaskId
from ropewalk.distribute.cluster_resolver import (
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    SimpleClusterResolver,
    UnionResolver,
)

client = Late("kubernetes.client")
JOBS = {"ps": ["app=mnist,role=ps"], "worker": ["job-name=mnist"]}


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with serve() as server:
        server.pods = [
            of_indexed_job("mnist", 1, running("10.244.0.12")),
            of_indexed_job("mnist", 0, running("10.244.0.11")),
            of_stateful_set("ps", 0, running("10.244.0.10")),
        ]
        yield server


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is in no pod, and ``localhost`` needs no proxy."""
    for name in ("KUBERNETES_SERVICE_HOST", "POD_NAME", "HOSTNAME", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def of(api: KubernetesApi, mapping: Any = JOBS, **arguments: Any) -> KubernetesClusterResolver:
    settings = client.Configuration(host=api.url)
    settings.retries = 0
    arguments.setdefault("clock", ManualClock())
    return KubernetesClusterResolver(
        mapping,
        2222,
        override_client=client.CoreV1Api(client.ApiClient(settings)),
        namespace="train",
        **arguments,
    )


def test_the_pods_of_a_namespace_are_a_cluster(api: KubernetesApi) -> None:
    resolver = of(api)
    assert resolver.cluster_spec() == ClusterSpec(
        {"ps": ["ps-0.ps.train.svc:2222"], "worker": ["10.244.0.11:2222", "10.244.0.12:2222"]}
    )
    assert {path for path, _ in api.asked} == {"/api/v1/namespaces/train/pods"}
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    assert resolver.master("worker", 1) == "grpc://10.244.0.12:2222"


def test_a_pod_of_the_cluster_knows_its_task(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTNAME", "mnist-1")  # an Indexed Job's host name, without the random end
    task = resolve(of(api))
    assert task.task == TaskId("worker", 1)
    assert task.address == "10.244.0.12:2222"
    assert task.sources["cluster"] == "pods of namespace train"
    assert task.sources["task"] == "pod mnist-1"
    assert of(api, pod_name="ps-0").task_type == "ps"


def test_what_a_program_sets_wins_as_in_tensorflow(api: KubernetesApi) -> None:
    resolver = of(api)
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.master() == "grpc://10.244.0.11:2222"
    task = resolve(resolver)
    assert (task.task, task.address) == (TaskId("worker", 0), "10.244.0.11:2222")


def test_one_selector_is_enough_where_labels_say_the_types(api: KubernetesApi) -> None:
    api.pods = [of_job_set(role, 0, 0, running("10.0.0.1")) for role in ("chief", "ps", "worker")]
    resolver = of(
        api, None, selector="jobset.sigs.k8s.io/jobset-name=mnist", pod_name="mnist-ps-0-0"
    )
    assert resolver.cluster_spec().jobs == ["chief", "ps", "worker"]
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.master("chief", 0) == "grpc://mnist-chief-0-0.mnist.train.svc:2222"


def test_a_snapshot_asks_no_more(api: KubernetesApi) -> None:
    resolver = of(api, pod_name="mnist-0")
    fixed = resolver.snapshot()
    asked = len(api.asked)
    api.pods = []
    assert fixed.cluster_spec().num_tasks("worker") == 2
    assert (fixed.task_type, fixed.task_id) == ("worker", 0)
    assert len(api.asked) == asked


def test_long_listings_come_in_pages(api: KubernetesApi) -> None:
    api.page = 2
    api.pods = [of_indexed_job("mnist", n, running(f"10.0.0.{n}")) for n in range(5)]
    resolver = of(api, {"worker": ["job-name=mnist"]})
    assert resolver.cluster_spec().num_tasks("worker") == 5
    assert [asked.get("continue") for _, asked in api.asked] == [None, "2", "4"]


def test_the_default_selector_is_tensorflows(api: KubernetesApi) -> None:
    api.pods = [of_indexed_job("tensorflow", 0, running("10.0.0.1"))]
    assert of(api, None).cluster_spec().as_dict() == {"worker": ["10.0.0.1:2222"]}
    assert api.asked[0][1]["labelSelector"] == "job-name=tensorflow"


def test_it_can_be_part_of_a_union(api: KubernetesApi) -> None:
    here = SimpleClusterResolver(ClusterSpec({"chief": ["laptop:1"]}), task_type="chief", task_id=0)
    spec = UnionResolver(here, of(api)).cluster_spec()
    assert spec.jobs == ["chief", "ps", "worker"]


# -- waiting -------------------------------------------------------------------------------------


class PodsThatCome(ManualClock):
    """A clock with which pods of a cluster begin to run, one every five seconds."""

    def __init__(self, api: KubernetesApi) -> None:
        super().__init__()
        self._api = api

    def wait(self, event: Any, timeout_s: float) -> bool:
        result = super().wait(event, timeout_s)
        for index in range(int(self.now() // 5)):
            if index < len(self._api.pods):
                self._api.pods[index]["status"] = running(f"10.0.0.{index}")
        return result


def test_it_waits_for_pods_and_says_for_which_and_why(
    api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.pods = [
        of_indexed_job("mnist", 0, unschedulable()),
        of_indexed_job("mnist", 1, pulling()),
    ]
    with caplog.at_level(logging.INFO):
        spec = of(
            api, {"worker": ["job-name=mnist"]}, replicas={"worker": 2}, clock=PodsThatCome(api)
        ).cluster_spec()
    assert spec.as_dict() == {"worker": ["10.0.0.0:2222", "10.0.0.1:2222"]}
    first = caplog.messages[0]
    assert "KubernetesClusterResolver in namespace 'train' waits for worker:0, worker:1" in first
    assert "worker:0: pod mnist-0-x7k2p is Pending: not scheduled: Unschedulable" in first
    assert "worker:1: pod mnist-1-x7k2p is Pending: container tensorflow: ImagePullBack" in first
    assert caplog.messages[-1].endswith("over")


def test_the_wait_has_an_end_which_names_every_pod(api: KubernetesApi) -> None:
    api.pods[0]["status"] = pulling()
    clock = ManualClock()
    with pytest.raises(JoinTimeoutError) as caught:
        of(api, replicas={"ps": 2, "worker": 2}, timeout_s=30, clock=clock).cluster_spec()
    assert 30 <= clock.now() <= 32
    said = caught.value.message
    assert "after 30 s (timeout_s) still without ps:1, worker:1" in said
    assert "ps:1: there is no pod" in said
    assert "worker:1: pod mnist-1-x7k2p is Pending: container tensorflow: ImagePullBackOff" in said


def test_a_selector_that_selects_nothing_is_named(api: KubernetesApi) -> None:
    with pytest.raises(JoinTimeoutError, match="the selector 'app=typo' selects none"):
        of(api, None, selector="app=typo", timeout_s=1).cluster_spec()


@pytest.mark.parametrize("answer", [429, 500, 503, 504, 410, "cut"], ids=str)
def test_an_api_that_is_not_well_is_asked_again(api: KubernetesApi, answer: int | str) -> None:
    api.answers = [answer, answer]
    assert of(api).cluster_spec().num_tasks("worker") == 2


def test_an_api_that_stays_away_ends_the_wait(api: KubernetesApi) -> None:
    api.answers = [503] * 100
    with pytest.raises(
        JoinTimeoutError, match=r"the list of pods: .* does not answer \(HTTP 503\)"
    ):
        of(api, timeout_s=5).cluster_spec()


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            403,
            AccessError,
            'list Pods in namespace train: 403 .*"system:serviceaccount:train:trainer" cannot '
            ".*create role list-pods.*--serviceaccount=train:trainer`",
        ),
        (401, AccessError, "list Pods in namespace train: 401"),
        (400, ConfigurationError, "list Pods in namespace train: 400"),
    ],
)
def test_what_waiting_does_not_mend_is_said_at_once(
    api: KubernetesApi, answer: int, kind: type[RopewalkError], said: str
) -> None:
    api.answers = [answer]
    clock = ManualClock()
    with pytest.raises(kind, match=said):
        of(api, clock=clock).cluster_spec()
    assert clock.now() == 0


# -- where the API is ------------------------------------------------------------------------------


def test_off_the_cluster_the_kubeconfig_says_where(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kubeconfig(tmp_path, api.url, monkeypatch)
    resolver = KubernetesClusterResolver(
        JOBS, 2222, executable_location=KubernetesExecutableLocation.OFF_CLUSTER
    )
    assert resolver.cluster_spec().num_tasks("worker") == 2
    assert not resolver.from_launcher


def test_within_the_cluster_the_service_account_says_where(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = client.Configuration(host=api.url)  # the server of this test speaks no TLS
    module = "ropewalk.annexes.kubernetes.resolver"
    monkeypatch.setattr(f"{module}.pod_client", lambda: client.ApiClient(settings))
    (tmp_path / "namespace").write_text("train")
    monkeypatch.setattr(f"{module}.own_namespace", partial(own_namespace, tmp_path))
    monkeypatch.setenv("HOSTNAME", "mnist-0")
    resolver = KubernetesClusterResolver(JOBS, 2222)
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.from_launcher


def test_outside_of_a_pod_it_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"needs a service account .*OFF_CLUSTER"):
        KubernetesClusterResolver()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match=r"pip install 'ropewalk\[k8s\]'"):
        KubernetesClusterResolver()
    KubernetesClusterResolver(override_client=object())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"executable_location": 1}, "must be a KubernetesExecutableLocation, got 1"),
        ({"job_to_label_mapping": JOBS, "selector": "a=b"}, "not both"),
        ({"job_to_label_mapping": {"worker": "a=b"}}, "job 'worker' needs a list of label sel"),
        ({"addresses": "host"}, "addresses must be auto, ip or name, got 'host'"),
    ],
    ids=["location", "both", "no list", "addresses"],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KubernetesClusterResolver(override_client=object(), **arguments)
