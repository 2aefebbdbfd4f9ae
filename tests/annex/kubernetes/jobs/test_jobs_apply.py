"""``ropewalk k8s apply`` through the official client, against an API server on loopback."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.jobfile import DIGITS, digits
from helpers.kubernetes.cluster import KubernetesCluster, Refused
from helpers.kubernetes.connected_api import completions
from helpers.kubernetes.job_objects import ended, finish, ready, task_pod
from helpers.kubernetes.pod_listings import Listed
from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.applying import apply_job
from ropewalk.annexes.kubernetes.k8s_commands import headline
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.observing import observe
from ropewalk.core.errors import (
    ConfigurationError,
    IncompatibleError,
    PeerLostError,
)


def test_a_job_is_applied_by_one_manager_and_can_be_applied_again(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    for _ in range(2):
        said = run("apply", "--job", str(DIGITS))
        assert said.exception is None, said.exception
    assert "StatefulSet digits-ps applied" in said.output
    patches = [
        each for each in cluster.asked if each.method == "PATCH" and "/pods/" not in each.path
    ]
    # Each time all of them are tried before the first is applied.
    count = len(manifests(digits()))
    dry = [each.query.get("dryRun") == "All" for each in patches]
    assert dry == [*[True] * count, *[False] * count] * 2
    for each in patches:
        assert each.content_type == "application/apply-patch+yaml"
        assert each.query["fieldManager"] == "ropewalk"
        assert each.query["fieldValidation"] == "Strict"
        assert "force" not in each.query
    assert cluster.get("Job", "digits-worker") is not None


def test_a_dry_run_changes_nothing(cluster: KubernetesCluster, run: Callable[..., Result]) -> None:
    said = run("apply", "--job", str(DIGITS), "--dry-run", "--json")
    assert {each["what"] for each in json.loads(said.output)} == {"would be applied"}
    assert cluster.get("Service", "digits-tasks") is None


def test_what_somebody_else_owns_is_a_conflict_until_it_is_forced(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    live = cluster.get("StatefulSet", "digits-ps")
    assert live is not None
    cluster.put("StatefulSet", {**live, "spec": {**live["spec"], "replicas": 7}})
    cluster.managers["StatefulSet", "digits-ps"] = {"spec.replicas": "kubectl"}
    with pytest.raises(
        IncompatibleError,
        match=r'^nothing was changed: .*conflict with "kubectl".*--force takes these',
    ):
        apply_job(api, digits())
    apply_job(api, digits(), force=True)
    live = cluster.get("StatefulSet", "digits-ps")
    assert live is not None
    assert live["spec"]["replicas"] == 2


def written(cluster: KubernetesCluster) -> list[str]:
    """What was asked of the server beside questions and dry runs."""
    return [
        f"{each.method} {each.path.rpartition('/')[2]}"
        for each in cluster.asked
        if each.method != "GET" and each.query.get("dryRun") != "All"
    ]


def test_a_program_that_changed_leaves_the_job_alone_and_the_error_says_how_to_replace_it(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    before = {name: cluster.get(*name) for name in cluster.names()}
    cluster.asked.clear()
    with pytest.raises(ConfigurationError) as refused:
        apply_job(api, digits().model_copy(update={"image": "ropewalk-digits:2"}))
    assert refused.value.message == (
        "nothing was changed: Job digits-chief, Job digits-worker, Job digits-evaluator would "
        "change spec.template, which is immutable while the object is there; delete it first: "
        "`ropewalk k8s apply --replace -n train` (checkpoints stay, and training goes on from the last one)"
    )
    assert written(cluster) == []
    assert {name: cluster.get(*name) for name in cluster.names()} == before


def test_the_hint_of_a_refusal_names_the_job_file_that_was_named(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    run("apply", "--job", str(DIGITS))
    other = tmp_path / "my job.yaml"
    other.write_text(DIGITS.read_text().replace("digits:0.1.0", "digits:0.2.0"))
    refused = str(run("apply", "--job", str(other)).exception)
    assert f"`ropewalk k8s apply --replace --job '{other}' -n train`" in refused


def test_a_program_that_changed_replaces_the_tasks_once_their_pods_have_left(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    cluster.put("Pod", task_pod("worker", 0, ready()))
    threads: list[threading.Thread] = []

    def leave(kind: str, item: Listed) -> None:
        if item["metadata"]["name"] == "digits-worker":
            threads.append(threading.Timer(0.3, cluster.remove, ("Pod", "digits-worker-0-x7k2p")))
            threads[-1].start()

    cluster.on_delete = leave
    old = cluster.get("Job", "digits-chief")
    cluster.asked.clear()
    told: list[str] = []
    other = digits().model_copy(update={"image": "ropewalk-digits:2"})
    done = apply_job(api, other, replace=True, say=told.append)
    assert told[0] == "Job digits-worker deleted"
    assert {each.what for each in done} == {"applied"}
    new = cluster.get("Job", "digits-chief")
    assert old is not None
    assert new is not None
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert written(cluster)[:6] == [
        "DELETE digits-worker",
        "DELETE digits-evaluator",
        "DELETE digits-chief",
        *("DELETE digits-worker", "DELETE digits-chief", "DELETE digits-ps"),  # StatefulSets
    ]
    for thread in threads:
        thread.join()


def test_a_replacement_that_would_be_refused_deletes_nothing(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    cluster.asked.clear()
    # Under its own name the Job is immutable; as a new one its template is wrong.
    cluster.refusals = [Refused(422, "spec.template: too long", path="digits-check")]
    with pytest.raises(ConfigurationError, match=r"^nothing was changed: .*too long"):
        apply_job(api, digits().model_copy(update={"image": "ropewalk:2"}), replace=True)
    assert written(cluster) == []


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("Complete", "digits is done, and applying it again starts nothing; with --replace"),
        ("Failed", r"digits has failed \(chief:0: exit code 4.*with --replace"),
    ],
)
def test_a_job_that_is_over_is_not_applied_and_that_is_said(
    cluster: KubernetesCluster, api: KubernetesApi, end: str, said: str
) -> None:
    apply_job(api, digits())
    cluster.put("Pod", task_pod("chief", 0, ended(4)))
    finish(cluster, "chief", end)
    cluster.asked.clear()
    with pytest.raises(ConfigurationError, match=said):
        apply_job(api, digits())
    assert written(cluster) == []
    cluster.remove("Pod", "digits-chief-0-x7k2p")
    assert {each.what for each in apply_job(api, digits(), replace=True)} == {"applied"}


@pytest.mark.parametrize("suspended", [(), ("worker", "evaluator")], ids=["done", "failed"])
def test_a_job_whose_chief_was_tidied_away_is_started_anew_and_not_in_part(
    cluster: KubernetesCluster, api: KubernetesApi, suspended: tuple[str, ...]
) -> None:
    apply_job(api, digits())
    # As its chief has ended it, and Kubernetes deleted the Jobs that had ended (keep_s).
    for role in {"chief", "worker", "evaluator"} - {*suspended}:
        cluster.remove("Job", f"digits-{role}")
    changes: dict[tuple[str, str], Listed] = {("StatefulSet", "ps"): {"replicas": 0}}
    changes |= {("Job", role): {"suspend": True} for role in suspended}
    for (kind, role), spec in changes.items():
        live = cluster.get(kind, f"digits-{role}")
        assert live is not None
        cluster.put(kind, {**live, "spec": {**live["spec"], **spec}})
    cluster.managers["StatefulSet", "digits-ps"] = {"spec.replicas": "unknown"}
    assert observe(api, "digits").phase == "Absent"
    cluster.put(
        "ConfigMap",
        {"metadata": {"name": "digits-status"}, "data": {"phase": "failed", "reason": "why"}},
    )
    assert headline(observe(api, "digits")) == "digits: Failed: why"
    assert {each.what for each in apply_job(api, digits())} == {"applied"}
    for role in ("chief", "worker", "evaluator"):
        live = cluster.get("Job", f"digits-{role}")
        assert live is not None
        assert "suspend" not in live["spec"]


def test_a_job_that_is_being_deleted_is_waited_for_by_the_caller(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    live = cluster.get("Job", "digits-chief")
    assert live is not None
    metadata = {**live["metadata"], "deletionTimestamp": "2026-11-20T10:05:00Z"}
    cluster.put("Job", {**live, "metadata": metadata})
    with pytest.raises(ConfigurationError, match="Job digits-chief: still being deleted"):
        apply_job(api, digits())


def test_a_claim_that_would_change_names_what_can_be_done(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    storage = digits().storage.model_copy(update={"access": "ReadWriteMany"})
    with pytest.raises(ConfigurationError) as refused:
        apply_job(api, digits().model_copy(update={"storage": storage}))
    message = refused.value.message
    assert "PersistentVolumeClaim digits-checkpoints is there already" in message
    assert "core.PersistentVolumeClaimSpec" not in message


def test_a_webhook_that_takes_no_dry_run_is_no_refusal(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    text = 'admission webhook "m.example.com" does not support dry run'
    cluster.refusals = [Refused(400, text, method="PATCH", path="digits-chief")]
    told: list[str] = []
    assert len(apply_job(api, digits(), say=told.append)) == len(manifests(digits()))
    assert told == [f"Job digits-chief could not be tried: {text}"]


def test_an_apply_that_breaks_off_says_what_was_applied(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    count = len(manifests(digits()))
    real = api.apply

    def broken(body: Listed, **how: Any) -> Listed:
        if body["kind"] == "StatefulSet":
            raise PeerLostError("the API server cannot be reached")
        return real(body, **how)

    api.apply = broken  # type: ignore[method-assign]
    with pytest.raises(PeerLostError, match="applied before that: PersistentVolumeClaim digits-"):
        apply_job(api, digits())
    assert count > 2


def test_applying_again_keeps_what_scale_has_set_until_the_file_says_another_number(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    api.patch("Job", "digits-worker", {"spec": {"parallelism": 4, "completions": 4}})
    apply_job(api, digits())
    assert completions(cluster) == 4
    apply_job(api, digits().with_counts({"worker": 3}))
    assert completions(cluster) == 3
