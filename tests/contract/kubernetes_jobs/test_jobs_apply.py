"""``windlass k8s apply`` through the official client, against an API server on loopback."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from helpers.connected_api import completions
from helpers.job_objects import DIGITS, digits
from helpers.kubernetes_cluster import KubernetesCluster
from windlass.core.errors import (
    ConfigurationError,
    IncompatibleError,
)
from windlass.launch.k8s.client import KubernetesApi
from windlass.launch.k8s.manifests import manifests
from windlass.launch.k8s.operations import (
    apply_job,
)


def test_a_job_is_applied_by_one_manager_and_can_be_applied_again(
    cluster: KubernetesCluster, run: Callable[..., Result]
) -> None:
    for _ in range(2):
        said = run("apply", "--job", str(DIGITS))
        assert said.exception is None, said.exception
    assert "StatefulSet digits-ps applied" in said.output
    patches = [each for each in cluster.asked if each.method == "PATCH"]
    assert len(patches) == 2 * len(manifests(digits()))
    for each in patches:
        assert each.content_type == "application/apply-patch+yaml"
        assert each.query["fieldManager"] == "windlass"
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
    with pytest.raises(IncompatibleError, match=r'conflict with "kubectl".*--force takes them'):
        apply_job(api, digits())
    apply_job(api, digits(), force=True)
    live = cluster.get("StatefulSet", "digits-ps")
    assert live is not None
    assert live["spec"]["replicas"] == 2


def test_a_program_that_changed_needs_a_delete_and_the_error_says_so(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    other = digits().model_copy(update={"image": "windlass-digits:2"})
    with pytest.raises(ConfigurationError, match=r"windlass k8s delete.*checkpoints stay"):
        apply_job(api, other)


def test_applying_again_keeps_what_scale_has_set_until_the_file_says_another_number(
    cluster: KubernetesCluster, api: KubernetesApi
) -> None:
    apply_job(api, digits())
    api.patch("Job", "digits-worker", {"spec": {"parallelism": 4, "completions": 4}})
    apply_job(api, digits())
    assert completions(cluster) == 4
    apply_job(api, digits().with_counts({"worker": 3}))
    assert completions(cluster) == 3
