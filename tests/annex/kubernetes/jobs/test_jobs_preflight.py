"""What `ropewalk k8s apply` warns of before it applies: missing objects, storage, quotas."""

from collections.abc import Callable

import pytest
from click.testing import Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.job_objects import started
from helpers.kubernetes.pod_listings import Listed
from ropewalk.annexes.jobfile.parts import Security
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.preflight import needed, warnings


def quota(hard: dict[str, str], used: dict[str, str], **spec: object) -> Listed:
    return {
        "metadata": {"name": "team"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used},
    }


def test_a_namespace_that_has_everything_is_not_warned_of(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    said = run("apply", "--job", str(DIGITS))
    assert said.exception is None, said.exception
    assert "warning" not in said.stderr


def test_what_the_api_server_warns_of_is_said_once(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    cluster.warnings["Job"] = 'would violate PodSecurity "restricted:latest": runAsNonRoot != true'
    said = run("apply", "--job", str(DIGITS))
    assert said.exception is None, said.exception
    assert said.stderr == (
        'warning: would violate PodSecurity "restricted:latest": runAsNonRoot != true\n'
    )


def test_secrets_that_are_missing_are_named_with_the_roles_that_wait(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    job = digits().model_copy(update={"security": Security(mode="mtls")})
    cluster.put("Secret", {"metadata": {"name": "digits-ps-tls"}})
    said = warnings(api, manifests(job))
    assert len(said) == 3
    assert said[0] == (
        "there is no Secret digits-chief-tls in namespace train: pods of digits-chief do not start "
        "before it is there"
    )
    # Whether it exists is asked, and not what is in it.
    asked = [each for each in cluster.asked if "/secrets/" in each.path]
    assert all("PartialObjectMetadata" in each.accept for each in asked)
    assert asked


def test_what_the_caller_may_not_look_at_is_left_out(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    job = digits().model_copy(update={"security": Security(mode="mtls")})
    text = 'secrets is forbidden: User "ann" cannot get resource "secrets"'
    cluster.refusals = [Refused(403, text, path="-tls") for _ in range(4)]
    assert warnings(api, manifests(job)) == []


def test_every_place_that_names_an_object_is_looked_at() -> None:
    container = {
        "name": "ropewalk",
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "key", "key": "a"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "set", "key": "b"}}},
            {
                "name": "C",
                "valueFrom": {"secretKeyRef": {"name": "x", "key": "c", "optional": True}},
            },
        ],
        "envFrom": [{"secretRef": {"name": "all"}}, {"configMapRef": {"name": "more"}}],
    }
    spec = {
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "part"}}]}},
            {"name": "may", "configMap": {"name": "y", "optional": True}},
        ],
    }
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}}
    assert set(needed([job])) == {
        ("Secret", "key"),
        ("ConfigMap", "set"),
        ("Secret", "all"),
        ("ConfigMap", "more"),
        ("ServiceAccount", "trainer"),
        ("Secret", "registry"),
        ("PersistentVolumeClaim", "data"),
        ("Secret", "part"),
    }


@pytest.mark.parametrize(
    ("storage_class", "default", "said"),
    [
        ("fast", True, "no StorageClass fast for PersistentVolumeClaim digits-checkpoints (there "
         "is standard)"),
        ("", False, "no StorageClass is the cluster's default one: name one as "
         "storage.storage_class: standard"),
        ("standard", False, ""),
        ("", True, ""),
    ],
)  # fmt: skip
def test_storage_that_cannot_be_had_is_said(
    cluster: KubernetesCluster, api: KubernetesApi, storage_class: str, default: bool, said: str
) -> None:
    if not default:
        cluster.put("StorageClass", {"metadata": {"name": "standard"}})
    storage = digits().storage.model_copy(update={"storage_class": storage_class})
    job = digits().model_copy(update={"storage": storage})
    found = warnings(api, manifests(job))
    assert (said in found[0]) if said else found == []


@pytest.mark.parametrize(
    ("access", "provisioner", "is_said"),
    [
        ("ReadWriteMany", "rancher.io/local-path", True),
        ("ReadWriteOnce", "rancher.io/local-path", False),
        ("ReadWriteMany", "nfs.csi.k8s.io", False),
    ],
)
def test_a_claim_for_several_nodes_of_a_class_for_one_is_said(
    cluster: KubernetesCluster, api: KubernetesApi, access: str, provisioner: str, *, is_said: bool
) -> None:
    known = cluster.get("StorageClass", "standard")
    assert known is not None
    cluster.put("StorageClass", {**known, "provisioner": provisioner})
    storage = digits().storage.model_copy(update={"access": access})
    found = warnings(api, manifests(digits().model_copy(update={"storage": storage})))
    assert len(found) == is_said
    assert all(
        "standard (rancher.io/local-path) has volumes for one node alone" in f for f in found
    )


@pytest.mark.parametrize(
    ("hard", "used", "said"),
    [
        ({"pods": "8"}, {"pods": "1"}, ""),
        ({"pods": "8"}, {"pods": "3"}, "quota team has room for 5 more of pods, and the job asks "
         "for 6"),
        ({"requests.cpu": "1"}, {}, "room for 1 more of requests.cpu, and the job asks for 1.2"),
        ({"cpu": "1500m"}, {"cpu": "0"}, ""),
        ({"memory": "4Gi"}, {"memory": "2Gi"}, "room for 2048Mi more of memory, and the job asks "
         "for 3072Mi"),
        ({"limits.cpu": "10"}, {}, "counts limits.cpu, which the job's containers do not have"),
        ({"count/jobs.batch": "2"}, {}, "room for 2 more of count/jobs.batch"),
    ],
)  # fmt: skip
def test_quotas_that_will_refuse_pods_are_said(
    cluster: KubernetesCluster,
    api: KubernetesApi,
    hard: dict[str, str],
    used: dict[str, str],
    said: str,
) -> None:
    cluster.put("ResourceQuota", quota(hard, used))
    found = warnings(api, manifests(digits()))
    assert (said in found[0]) if said else found == []


def test_a_job_that_is_there_already_is_counted_once(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    started(cluster)
    cluster.put("ResourceQuota", quota({"pods": "6"}, {"pods": "6"}))
    assert warnings(api, manifests(digits())) == []
    cluster.put("ResourceQuota", quota({"pods": "0"}, {}, scopes=["BestEffort"]))
    assert warnings(api, manifests(digits())) == []


def with_part(**changes: object) -> list[Listed]:
    part = digits().kubernetes.model_copy(update=changes)
    return manifests(digits().model_copy(update={"kubernetes": part}))


def test_a_priority_class_that_is_not_there_is_said_before_pods_are_missing(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    documents = with_part(pod={"priorityClassName": "high"})
    said = warnings(api, documents)
    assert said == [
        f"pods of digits-{role} will not be admitted: no PriorityClass with name high was found"
        for role in ("ps", "chief", "worker", "evaluator")
    ]
    assert {kind for kind, _ in cluster.names()} == {"StorageClass"}, "nothing was made"
    cluster.put("PriorityClass", {"metadata": {"name": "high"}})
    assert warnings(api, documents) == []


def test_a_runtime_class_that_kustomize_has_added_is_looked_for(api: KubernetesApi) -> None:
    [document] = [each for each in manifests(digits()) if each["metadata"]["name"] == "digits-ps"]
    document["spec"]["template"]["spec"]["runtimeClassName"] = "gvisor"
    [_, said] = warnings(api, [document])  # the first is about the claim
    assert said.endswith('pod rejected: RuntimeClass "gvisor" not found')


def test_an_account_and_pull_secrets_that_are_missing_are_named_once(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    pod = {"serviceAccountName": "robot"}
    documents = with_part(pod=pod, image_pull_secrets=["registry"], end_job=True)
    said = warnings(api, documents)
    assert [each.partition(" in namespace")[0] for each in said] == [
        "there is no Secret registry",
        "there is no ServiceAccount robot",
    ]
    # The chief's own account comes with the job.
    assert warnings(api, with_part(end_job=True)) == []


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            'pods is forbidden: User "ann" cannot patch resource "pods" in API group "" in the '
            'namespace "train"',
            id="the caller may make no pods",
        ),
        pytest.param(
            'pods "digits-ps-check" is forbidden: exceeded quota: team, requested: pods=1, used: '
            "pods=6, limited: pods=6",
            id="the job's own pods fill the quota",
        ),
    ],
)
def test_a_refusal_that_is_not_about_the_jobs_pods_is_left_out(
    cluster: KubernetesCluster, api: KubernetesApi, message: str
) -> None:
    cluster.refusals = [Refused(403, message, path="-check") for _ in range(4)]
    assert warnings(api, manifests(digits())) == []


def test_what_a_policy_says_of_pods_is_said(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    text = 'pods "digits-ps-check" is forbidden: maximum memory usage per Container is 256Mi'
    cluster.refusals = [Refused(403, text, path="/digits-ps-check")]
    assert warnings(api, manifests(digits())) == [
        "pods of digits-ps will not be admitted: maximum memory usage per Container is 256Mi"
    ]
