"""The manifests of ``deploy/k8s``: every one builds, and is what Kubernetes and Ropewalk take."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.jobfile import digits
from helpers.kubernetes.manifest_lints import FIELDS, problems, unknown_fields
from helpers.kubernetes.manifests import BUILT, K8S, Manifest, build, pod_templates, pods
from helpers.late import Late
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.cluster.access import principal_of_uri
from ropewalk.telemetry.metrics_page import PATH

kubernetes_validate = Late("kubernetes_validate")  # knows the schemas
KUBERNETES = "1.34"  # the oldest version whose fields these manifests use is older
_WITHOUT_JOBS = {"rbac", "podmonitor"}
ON_KIND = {"dev", "standalone", "tfjob"}
builds = pytest.mark.needs("kubectl or kustomize")
with_jobs = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.annex("service") if "standalone" in name else ())
        for name in BUILT
        if name not in _WITHOUT_JOBS
    ],
)


@pytest.mark.parametrize("name", BUILT)
@builds
def test_every_object_has_the_fields_that_its_kind_has_and_no_others(name: str) -> None:
    objects = build(name)
    for each in objects:
        if each["kind"] in FIELDS:
            assert unknown_fields(each) == []
        else:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)
    for kind in pod_templates(objects):  # those of custom resources, too
        made: Manifest = {"apiVersion": "v1", "kind": "Pod", **kind.template}
        if kind.job:
            made = {"apiVersion": "batch/v1", "kind": "Job", "spec": kind.job}
        kubernetes_validate.validate(made, KUBERNETES, strict=True)


@with_jobs
@builds
def test_no_manifest_has_a_mistake_that_a_schema_does_not_see(name: str) -> None:
    objects = build(name)
    if name == "base":  # nobody has given the job its name yet
        objects = tuple(each for each in objects if each["kind"] != "Service")
        known = {
            "no Service has its serviceName", "no Service is called tasks",
            "no label app.kubernetes.io/instance",
        }  # fmt: skip
        found = [said for said in problems(objects) if not any(word in said for word in known)]
        assert found == []
        return
    assert problems(objects) == []


def _in_place(*path: str | int, value: Any) -> Callable[[Manifest], None]:
    def change(each: Any) -> None:
        for key in path[:-1]:
            each = each[key]
        each[path[-1]] = value

    return change


_CONTAINER = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        pytest.param(
            "Job", _in_place("spec", "template", "spec", "restartPolicy", value="Always"),
            "restartPolicy Always is not for Jobs", id="a Job that restarts for ever",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "name", value="Ropewalk"), "is no DNS label", id="letters"
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "ports", 0, "containerPort", value=99999),
            "99999 is no port", id="port",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "resources", "limits", "nvidia.com/gpu", value="0.5"),
            "devices come whole", id="half a GPU",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "volumeMounts", 0, "name", value="data"),
            "no volume is called data", id="volume",
        ),
        pytest.param(
            "Job", _in_place("spec", "template", "spec", "subdomain", value="other"),
            "no Service is called other", id="subdomain",
        ),
        pytest.param(
            "StatefulSet", _in_place("spec", "serviceName", value="other"), "serviceName",
            id="serviceName",
        ),
        pytest.param(
            "StatefulSet", _in_place("spec", "selector", "matchLabels", "a", value="b"),
            "does not select its own pods", id="selector",
        ),
        pytest.param(
            "Service", _in_place("spec", "selector", "a", value="b"), "selects no pod", id="Service"
        ),
        pytest.param(
            "Service", _in_place("spec", "ports", 0, "targetPort", value="http"),
            "has no port 'http'", id="targetPort",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "livenessProbe", "tcpSocket", "port", value="alive"),
            "which the container has not", id="probe",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "env", 0, "value", value=1), "is not text", id="number"
        ),
        pytest.param(
            "Job",
            _in_place(*_CONTAINER, "env", 0, value={"name": "ROPEWALK_HOST", "value": "$(LATER)"}),
            "comes later or never", id="order of variables",
        ),
        pytest.param(
            "Job", _in_place(*_CONTAINER, "env", 0, value={"name": "ROPEWALK_HOTS", "value": "a"}),
            "Ropewalk reads no ROPEWALK_HOTS", id="misspelt setting",
        ),
        pytest.param(
            "Job", _in_place("spec", "template", "spec", "securityContext", value={}),
            "wants runAsNonRoot", id="root",
        ),
        pytest.param(
            "Job", _in_place("spec", "parallelism", value=3), "parallelism is not completions",
            id="parallelism",
        ),
        pytest.param(
            "StatefulSet", _in_place("spec", "replicas", value=3), "says ps=2", id="replicas"
        ),
        pytest.param(
            "Job", _in_place("spec", "template", "metadata", "labels", value={}),
            "its pods have no label app.kubernetes.io/instance", id="label",
        ),
    ],
)  # fmt: skip
@builds
def test_a_mistake_is_found(kind: str, change: Callable[[Manifest], None], said: str) -> None:
    objects = copy.deepcopy(build("overlays/dev"))
    change(next(each for each in objects if each["kind"] == kind))
    assert any(said in problem for problem in problems(objects)), problems(objects)


def test_yaml_says_the_same_to_kubernetes_and_to_python() -> None:
    ambiguous = {"y", "n", "yes", "no", "on", "off"}  # true and false in YAML 1.1, text in Go's
    for path in sorted(K8S.rglob("*.yaml")):
        for event in yaml.parse(path.read_text()):
            if isinstance(event, yaml.ScalarEvent) and event.style is None:
                assert event.value.lower() not in ambiguous, f"{path}: quote {event.value!r}"


@builds
def test_a_job_that_nobody_gave_an_identity_or_insecure_does_not_start() -> None:
    def variables(name: str) -> set[str]:
        return {
            each["name"]
            for kind in pod_templates(build(name))
            for container in kind.spec["containers"]
            for each in container["env"]
        }

    assert not {"ROPEWALK_INSECURE", "ROPEWALK_TLS_CERT"} & variables("base")
    assert "ROPEWALK_INSECURE" not in variables("overlays/prod")


@pytest.mark.parametrize("name", [f"overlays/{n}" for n in sorted(ON_KIND)])
@builds
def test_what_is_documented_for_one_node_fits_it(name: str) -> None:
    objects = build(name)
    for kind in pod_templates(objects):
        requests = kind.spec["containers"][0]["resources"]["requests"]
        assert requests == {"cpu": "100m", "memory": "384Mi"}, kind.owner
    [claim] = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "the only one that kind has"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    job = "desk" if name == "overlays/standalone" else "digits"
    assert claim["metadata"]["name"] == f"{job}-checkpoints", "two jobs share a namespace"


@builds
def test_production_has_a_volume_for_several_nodes() -> None:
    [claim] = [e for e in build("overlays/prod") if e["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@builds
def test_certificates_are_those_of_the_roles_that_mount_them() -> None:
    objects = build("overlays/prod")
    [service] = [each for each in objects if each["kind"] == "Service"]
    namespace = service["metadata"]["namespace"]
    certificates = {
        each["spec"]["secretName"]: each["spec"]
        for each in objects
        if each["kind"] == "Certificate" and "uris" in each["spec"]
    }
    issuers = {each["metadata"]["name"] for each in objects if each["kind"] == "Issuer"}
    for kind in pod_templates(objects):
        [secret] = [volume["secret"] for volume in kind.spec["volumes"] if "secret" in volume]
        certificate = certificates.pop(secret["secretName"])
        principal = principal_of_uri(certificate["uris"][0])
        assert principal.job == kind.labels["app.kubernetes.io/instance"]
        assert principal.role == kind.labels["app.kubernetes.io/component"]
        assert certificate["dnsNames"] == [f"*.{service['metadata']['name']}.{namespace}.svc"]
        # The chief is asked for its status through a port-forward, too.
        forwarded = ["127.0.0.1"] if principal.role == "chief" else []
        assert certificate.get("ipAddresses", []) == forwarded
        assert certificate["issuerRef"]["name"] in issuers
        assert secret["defaultMode"] == 0o440
    assert not certificates


@builds
def test_ps_are_not_evicted_one_by_one_in_production() -> None:
    [budget] = [each for each in build("overlays/prod") if each["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 0
    [ps] = [each for each in build("overlays/prod") if each["kind"] == "StatefulSet"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= (
        ps["spec"]["template"]["metadata"]["labels"].items()
    )


@builds
def test_a_policy_lets_the_tasks_of_a_job_alone_in() -> None:
    policy, of_chief = [e for e in build("overlays/prod") if e["kind"] == "NetworkPolicy"]
    if policy["metadata"]["name"] == "digits-chief":
        policy, of_chief = of_chief, policy
    assert of_chief["spec"]["policyTypes"] == ["Egress"]
    [api_server] = of_chief["spec"]["egress"]
    assert {each["port"] for each in api_server["ports"]} == {443, 6443, 8443}
    among, probes, metrics = policy["spec"]["ingress"]
    assert among["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "digits"
    assert [port["port"] for port in among["ports"]] == ["grpc"]
    assert [port["port"] for port in probes["ports"]] == ["health"]
    assert [port["port"] for port in metrics["ports"]] == ["metrics"]
    [monitoring] = metrics["from"]
    assert list(monitoring) == ["namespaceSelector"]
    assert "matchLabels" not in monitoring["namespaceSelector"]  # Prometheus is no part of the job
    [_, names] = policy["spec"]["egress"]
    assert "matchLabels" not in names["to"][0]["podSelector"]  # DNS is no part of the job


def dev_with(folder: Path, *components: str, namespace: str = "") -> tuple[Manifest, ...]:
    """``overlays/dev`` with more components, built from a copy of its kustomization."""
    text = (K8S / "overlays" / "dev" / "kustomization.yaml").read_text()
    more = "".join(f"  - ../../components/{name}\n" for name in components)
    text = text.replace("components:\n", f"components:\n{more}")
    text += f"namespace: {namespace}\n" if namespace else ""
    # Kustomize takes folders by relative paths alone.
    relative = "/".join([".."] * len(folder.parts[1:])) + str(K8S)
    (folder / "kustomization.yaml").write_text(text.replace("../..", relative))
    return build(str(folder))


@builds
def test_the_gpu_component_gives_devices_to_those_who_compute(tmp_path: Path) -> None:
    objects = dev_with(tmp_path, "gpu")
    devices = {
        kind.name: kind.spec["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for kind in pod_templates(objects)
    }
    assert devices == {
        "digits-ps": None, "digits-chief": 1, "digits-worker": 1, "digits-evaluator": None
    }  # fmt: skip
    assert problems(objects) == []


@pytest.mark.parametrize("name", ["overlays/tfjob", ""])
@builds
def test_manifests_say_where_every_pod_shows_its_metrics(name: str, tmp_path: Path) -> None:
    objects = build(name) if name else dev_with(tmp_path, "metrics")
    [monitor] = build("podmonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for kind in pod_templates(objects):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= kind.labels.items()
        [container] = kind.spec["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        said = {each["name"]: each.get("value") for each in container["env"]}
        annotations = kind.template["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == said["ROPEWALK_METRICS_PORT"]
        assert named[endpoint["port"]] == int(said["ROPEWALK_METRICS_PORT"])
        assert annotations["prometheus.io/path"] == endpoint["path"] == PATH
    assert problems(objects) == []


@builds
def test_the_chief_alone_may_end_the_rest_of_its_own_job() -> None:
    objects = build("overlays/prod")
    [role] = [each for each in objects if each["kind"] == "Role"]
    assert role["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": ["digits-ps"],
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": ["digits-worker", "digits-evaluator"],
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "resourceNames": ["digits-chief", "digits-worker"],
            "verbs": ["get"],
        },
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "resourceNames": ["digits-ps-0", "digits-ps-1"],
            "verbs": ["get"],
        },
    ]
    [binding] = [each for each in objects if each["kind"] == "RoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert subject["namespace"] == "training"
    for kind in pod_templates(objects):
        is_chief = kind.name == "digits-chief"
        account = kind.spec.get("serviceAccountName")
        assert account == (subject["name"] if is_chief else None)
        assert kind.spec["automountServiceAccountToken"] == is_chief
        said = {each["name"]: each.get("value") for each in kind.spec["containers"][0]["env"]}
        assert said.get("ROPEWALK_ENDS_JOB") == ("true" if is_chief else None)


@builds
def test_the_replicas_component_says_the_same_as_a_job_file(tmp_path: Path) -> None:
    objects = dev_with(tmp_path, "replicas", "pdb")
    assert problems(objects) == []
    for kind in pod_templates(objects):
        [container] = kind.spec["containers"]
        said = {each["name"]: each.get("value") for each in container["env"]}
        has_them = kind.name in ("digits-ps", "digits-chief")
        assert said.get("ROPEWALK_PS_REPLICAS") == ("2" if has_them else None)
        service = container["readinessProbe"]["grpc"]["service"]
        assert service == ("replicated" if kind.name == "digits-ps" else "readiness")


@builds
def test_the_status_component_gives_the_chief_an_account_for_one_object(tmp_path: Path) -> None:
    objects = dev_with(tmp_path, "chief-account", "status", namespace="training")
    assert problems(objects) == []
    for each in objects:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    named = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert ("ConfigMap", "digits-status") in named
    role, binding = named["Role", "digits-status"], named["RoleBinding", "digits-status"]
    assert role["rules"][0]["resourceNames"] == ["digits-status"]
    assert role["rules"][0]["verbs"] == ["patch"], "it writes, and never looks"
    assert binding["roleRef"]["name"] == "digits-status"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "digits-chief", "namespace": "training"}
    ]
    accounts = {
        kind.name: (
            kind.spec.get("serviceAccountName"),
            kind.spec["automountServiceAccountToken"],
        )
        for kind in pod_templates(objects)
    }
    assert accounts.pop("digits-chief") == ("digits-chief", True)
    assert set(accounts.values()) == {(None, False)}
    # The same as `ropewalk k8s apply` makes of a job file.
    part = digits().kubernetes.model_copy(update={"status": True})
    rendered = manifests(digits().model_copy(update={"kubernetes": part}))
    ours = {each["kind"]: each for each in rendered}
    assert ours["Role"]["rules"] == role["rules"]
    assert ours["ConfigMap"]["metadata"]["name"] == "digits-status"


@builds
def test_every_pod_is_named_as_its_peers_dial_it() -> None:
    for pod in pods(build("overlays/dev"), "training"):
        index = pod.name.rpartition("-")[2]
        template = pod.environment["ROPEWALK_HOST_TEMPLATE"]
        assert template.format(role=pod.role, index=index) == f"{pod.name}.{pod.domain}:2222"


@builds
def test_a_tfjob_is_what_its_operator_fills_in() -> None:
    [job] = [each for each in build("overlays/tfjob") if each["kind"] == "TFJob"]
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    for kind in pod_templates((job,)):
        [container] = kind.spec["containers"]
        assert container["name"] == "tensorflow"
        assert {"name": "tfjob-port", "containerPort": 2222} in container["ports"]
        assert not any(each["name"] == "TF_CONFIG" for each in container["env"])
