"""GCEClusterResolver, from recorded answers of the Compute Engine API.

Answers have the form of the API's reference, ``instanceGroups.listInstances`` and
``instances.get``. The fake client refuses parameters that the real one refuses; where that is
installed (``ropewalk[gce]``) it reads the same answers.
"""

import json
import sys
import warnings
from typing import Any

import pytest

from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId
from ropewalk.distribute.cluster_resolver import GCEClusterResolver

BASE = "https://www.googleapis.com/compute/v1/projects/p/zones/europe-west4-a"
ADDRESSES = {"trainer-10": "10.164.0.4", "trainer-1": "10.164.0.12", "trainer-2": "10.164.0.7"}


def page(*names: str, following: str = "") -> dict[str, Any]:
    """An answer of listInstances; without instances it has no items."""
    answer: dict[str, Any] = {
        "kind": "compute#instanceGroupsListInstances",
        "id": f"{BASE}/instanceGroups/trainers",
    }
    if names:
        answer["items"] = [
            {"instance": f"{BASE}/instances/{name}", "status": "RUNNING"} for name in names
        ]
    return answer | ({"nextPageToken": following} if following else {})


def instance(name: str) -> dict[str, Any]:
    """An answer of instances.get, cut to what is read."""
    return {
        "kind": "compute#instance",
        "name": name,
        "status": "RUNNING",
        "networkInterfaces": [{"name": "nic0", "networkIP": ADDRESSES[name]}],
    }


class Request:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def execute(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Service:
    """As ``discovery.build("compute", "v1")``, with recorded answers."""

    def __init__(self, *pages: Any) -> None:
        self._pages = list(pages)
        self.listed = 0

    def instanceGroups(self) -> "Service":
        return self

    def instances(self) -> "Service":
        return self

    def listInstances(self, **parameters: Any) -> Request:
        assert parameters == {
            "project": "p",
            "zone": "europe-west4-a",
            "instanceGroup": "trainers",
            "body": {"instanceState": "RUNNING"},
            "orderBy": "name",
        }
        self.listed += 1
        return Request(self._pages[0])

    def listInstances_next(self, previous_request: Any, previous_response: Any) -> Request | None:
        if "nextPageToken" not in previous_response:
            return None
        return Request(self._pages[1])

    def get(self, *, project: str, zone: str, instance: str) -> Request:
        return Request(globals()["instance"](instance))


def of(service: Any, **arguments: Any) -> GCEClusterResolver:
    arguments.setdefault("hostname", "laptop")
    return GCEClusterResolver("p", "europe-west4-a", "trainers", 2222, service=service, **arguments)


def three() -> Service:
    return Service(page("trainer-10", "trainer-1", following="more"), page("trainer-2"))


def test_the_instances_of_a_group_are_a_job_in_the_order_of_their_names() -> None:
    resolver = of(three())
    assert resolver.cluster_spec() == ClusterSpec(
        {"worker": ["10.164.0.12:2222", "10.164.0.7:2222", "10.164.0.4:2222"]}
    )
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", None, "")
    assert resolver.master() == ""
    assert resolver.master("worker", 1, "http") == "http://10.164.0.7:2222"


def test_an_instance_finds_itself_by_its_name() -> None:
    resolver = of(three(), task_type="ps", hostname="trainer-2.europe-west4-a.c.p.internal")
    assert (resolver.task_type, resolver.task_id) == ("ps", 1)
    assert resolver.master() == "grpc://10.164.0.7:2222"
    assert resolve(of(three(), hostname="trainer-10")).task == TaskId("worker", 2)


def test_what_is_given_wins_and_the_type_stays() -> None:
    resolver = of(three(), task_id=0)
    resolver.task_id, resolver.rpc_layer = 2, "test"
    assert resolver.master() == "test://10.164.0.4:2222"
    with pytest.raises(RuntimeError, match="is given to its constructor"):
        resolver.task_type = "ps"


def test_the_group_is_listed_anew_and_a_snapshot_keeps_it() -> None:
    service = three()
    resolver = of(service)
    resolver.cluster_spec()
    fixed = resolver.snapshot()
    assert service.listed == 2
    assert fixed.cluster_spec() == fixed.cluster_spec()
    assert service.listed == 2


class HttpError(Exception):
    """As ``googleapiclient.errors.HttpError``, as far as it is read."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.resp = type("Response", (), {"status": str(status)})()
        self.reason = reason


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(page(), "no instance of instance group 'trainers' .* runs", id="none"),
        pytest.param(HttpError(403, "forbidden"), "answers 403 .*roles/compute.viewer", id="403"),
        pytest.param(HttpError(404, "not found"), "answers 404 .*check project, zone", id="404"),
        pytest.param(HttpError(503, "backend"), "answers 503 .*: backend", id="503"),
    ],
)
def test_what_does_not_work_is_said_with_the_group(answer: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        of(Service(answer)).cluster_spec()


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(ImportError, match=r"pip install 'ropewalk\[gce\]'"):
        GCEClusterResolver("p", "z", "g", 1)


def test_the_real_client_takes_these_requests() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of old versions of Python
        discovery = pytest.importorskip("googleapiclient.discovery")
        http = pytest.importorskip("googleapiclient.http")
        answers = [page("trainer-10", following="more"), instance("trainer-10")]
        answers += [page("trainer-2"), instance("trainer-2")]
        recorded = http.HttpMockSequence([({"status": "200"}, json.dumps(one)) for one in answers])
        service = discovery.build("compute", "v1", http=recorded, static_discovery=True)
        spec = of(service).cluster_spec()
        refused = http.HttpMockSequence([({"status": "404"}, "{}")])
        broken = of(discovery.build("compute", "v1", http=refused, static_discovery=True))
    assert spec.as_dict() == {"worker": ["10.164.0.7:2222", "10.164.0.4:2222"]}
    with pytest.raises(ConfigurationError, match="answers 404"):
        broken.cluster_spec()
