"""A job file as documents of each launcher: whole files, and what must hold of every job.

``UPDATE_GOLDEN=1`` writes the files in ``golden`` anew; read what changed before you commit it.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.jobfile import digits
from helpers.kubernetes.golden import golden
from helpers.kubernetes.manifest_lints import problems
from helpers.kubernetes.manifests import build, pod_templates, pods
from ropewalk.annexes.jobfile.compose import compose_document
from ropewalk.annexes.jobfile.local import LocalLauncher
from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.reading import parse_job
from ropewalk.annexes.jobfile.slurm import slurm_script
from ropewalk.annexes.jobfile.yaml_text import dump_documents, dump_yaml
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.annexes.kubernetes.scaling import departure, documents_to_apply
from ropewalk.cluster.resolvers.launchers import launcher_resolver
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.resolvers.resolver import SimpleClusterResolver
from ropewalk.cluster.resolvers.tf_config import cluster_of
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.net.unary import REPLICATED

Json = dict[str, Any]

TRICKY = """\
name: tricky
image: registry.example/train@sha256:0123
module: pack.train
arguments: ["$HOME", "$(id)", "a b", "it's", "y", "END\\nEND", 1e3]
environment: {A: "$(ROPEWALK_ROLE) $B", FLAG: no}
roles:
  ps: {count: 3, resources: {cpu: 1500m, memory: 3Gi}}
  worker:
    count: 4
    resources: {cpu: 2, memory: 1500M, gpu: 2}
    arguments: [--worker]
    environment: {ONLY: worker}
security: {mode: token}
storage: {model_dir: "s3://bucket/tricky"}
settings: {save_every_s: 30, wait_for_workers: 3}
kubernetes:
  namespace: train
  grace_s: 120
  image_pull_secrets: [pull]
  image_pull_policy: Always
  pod:
    nodeSelector: {pool: big, spot: true}
    tolerations: [{key: spot, operator: Exists}]
slurm: {partition: gpu, account: team, time: "1:00:00", nodes: 2, port: 9000,
        setup: [module load python], options: [--qos=high]}
"""


PODS = """\
name: pods
image: registry.example/train@sha256:0123
program: train.py
roles:
  ps:
    count: 2
    resources: {ephemeral_storage: 2Gi}
    kubernetes:
      pod:
        priorityClassName: high
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
                - matchExpressions: [{key: spot, operator: DoesNotExist}]
            preferredDuringSchedulingIgnoredDuringExecution:
              - weight: 10
                preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}
          podAntiAffinity:
            preferredDuringSchedulingIgnoredDuringExecution:
              - {weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname}}
        topologySpreadConstraints:
          - maxSkew: 1
            topologyKey: topology.kubernetes.io/zone
            whenUnsatisfiable: DoNotSchedule
      probes: {startup_s: 1200}
  worker:
    kubernetes:
      pod:
        serviceAccountName: reader
        volumes: [{name: scratch, emptyDir: {sizeLimit: 5Gi}}]
        affinity:
          podAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              - labelSelector: {matchLabels: {app: cache}}
                topologyKey: topology.kubernetes.io/zone
        tolerations: [{key: spot, operator: Exists}]
        securityContext: {runAsUser: 2000, runAsGroup: 2000, supplementalGroups: [3000]}
      container:
        env:
          - name: DATA_TOKEN
            valueFrom: {secretKeyRef: {name: data, key: token, optional: true}}
        volumeMounts: [{name: scratch, mountPath: /scratch}]
        securityContext: {readOnlyRootFilesystem: false}
security: {mode: insecure}
kubernetes:
  retries: 1
  deadline_s: 86400
  keep_s: 3600
  pod:
    nodeSelector: {pool: big}
    volumes:
      - {name: data, persistentVolumeClaim: {claimName: imagenet, readOnly: true}}
      - {name: keys, secret: {secretName: keys}}
      - {name: tables, configMap: {name: tables}}
  container:
    env: [{name: LEVEL, valueFrom: {configMapKeyRef: {name: settings, key: LEVEL}}}]
    envFrom:
      - {prefix: CLOUD_, secretRef: {name: cloud}}
      - {configMapRef: {name: more, optional: true}}
    volumeMounts:
      - {name: data, mountPath: /data, readOnly: true, subPath: train}
      - {name: keys, mountPath: /keys}
      - {name: tables, mountPath: /tables}
  labels: {team: vision, on: yes}
  annotations: {sidecar.istio.io/inject: false}
"""


def tricky() -> JobFile:
    return parse_job(TRICKY)


def with_pods() -> JobFile:
    """A job that says of its pods what a job file can say."""
    return parse_job(PODS)


# -- whole files -----------------------------------------------------------------------------------


def of_kubernetes(job: JobFile) -> str:
    return dump_documents(manifests(job))


def of_compose(job: JobFile) -> str:
    return dump_yaml(compose_document(job))


def of_slurm(job: JobFile) -> str:
    return slurm_script(job, "/home/me/job")


def of_local(job: JobFile) -> str:
    settings = Settings(model_dir="runs/a", **job.settings.model_dump(exclude_unset=True))
    return LocalLauncher(Path("/home/me/job"), settings).render(job)


@pytest.mark.parametrize(
    ("name", "render"),
    [
        ("k8s.yaml", of_kubernetes),
        ("compose.yaml", of_compose),
        ("slurm.sh", of_slurm),
        ("local.txt", of_local),
    ],
    ids=["Kubernetes", "compose", "Slurm", "local"],
)
@pytest.mark.parametrize("job", [digits(), tricky()], ids=["digits", "tricky"])
def test_a_job_is_rendered_as_it_was(job: JobFile, name: str, render: Any) -> None:
    golden(f"{job.name}.{name}", render(job))
    assert render(job) == render(job)


def test_all_that_a_job_file_says_of_pods_is_rendered_as_it_was() -> None:
    golden("pods.k8s.yaml", of_kubernetes(with_pods()))


@pytest.mark.parametrize("data", ["y", "no", "010", "1:30", "null", "a: b", "- a", "l1\nl2", " x"])
def test_what_is_written_reads_back_as_it_was(data: str) -> None:
    assert yaml.safe_load(dump_yaml({"a": data, "b": [data]})) == {"a": data, "b": [data]}


# -- Kubernetes ------------------------------------------------------------------------------------

MANY = [
    digits(),
    tricky(),
    digits().with_counts({"ps": 0, "evaluator": 0}),
    digits().with_counts({"chief": 0}),
]
IDS = ["digits", "tricky", "in sync", "no chief"]


@pytest.mark.parametrize("job", [*MANY, with_pods()], ids=[*IDS, "pods"])
@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_kubernetes_accepts_every_object(job: JobFile, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in manifests(job):
        kubernetes_validate.validate(each, version, strict=True)


def templates(objects: list[Json]) -> dict[str, Json]:
    """Pod templates by role."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]
        for each in objects
        if "template" in each["spec"]
    }


@pytest.mark.parametrize("job", MANY, ids=IDS)
def test_what_schemas_do_not_see_holds_too(job: JobFile) -> None:
    objects = manifests(job)
    service = next(each for each in objects if each["kind"] == "Service")
    claims = {e["metadata"]["name"] for e in objects if e["kind"] == "PersistentVolumeClaim"}
    for role, template in templates(objects).items():
        spec, labels = template["spec"], template["metadata"]["labels"]
        (container,) = spec["containers"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert labels["app.kubernetes.io/component"] == role
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        used = volumes.get("checkpoints", {}).get("persistentVolumeClaim", {}).get("claimName")
        assert used is None or used in claims
        names = [port["name"] for port in container["ports"]]
        assert service["spec"]["ports"][0]["targetPort"] in names
        assert container["livenessProbe"]["tcpSocket"]["port"] in names
        limits = container["resources"]["limits"]
        assert isinstance(limits.get("nvidia.com/gpu", 0), int)
        assert limits["memory"] == container["resources"]["requests"]["memory"]
        assert spec.get("subdomain", service["metadata"]["name"]) == service["metadata"]["name"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not spec["automountServiceAccountToken"]
        for variable in container["env"]:
            assert variable.get("value", "") is not None
    for each in objects:
        name = each["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 63
        if each["kind"] == "Job":
            spec = each["spec"]
            assert spec["template"]["spec"]["restartPolicy"] == "Never"
            assert spec["completions"] == spec["parallelism"]
            (ignored, asked, failing) = spec["podFailurePolicy"]["rules"]
            assert asked["onExitCodes"]["values"] == [ExitCode.DRAINED]
            assert ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
            codes = failing["onExitCodes"]["values"]
            assert codes == list(range(1, 128))
            assert 143 not in codes
        if each["kind"] == "StatefulSet":
            assert each["spec"]["serviceName"] == service["metadata"]["name"]
            matched = each["spec"]["selector"]["matchLabels"]
            assert matched.items() <= each["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("job", MANY, ids=IDS)
def test_it_has_no_mistake_that_was_found_in_manifests(job: JobFile) -> None:
    assert problems(tuple(manifests(job))) == []


def test_what_a_job_file_says_of_pods_is_all_that_lints_see_in_them() -> None:
    found = {said.partition(": ")[2] for said in problems(tuple(manifests(with_pods())))}
    assert found == {
        "nobody makes the claim imagenet", "wants a root file system that is read-only"
    }  # fmt: skip


@pytest.mark.parametrize("job", MANY, ids=IDS)
def test_every_pod_is_called_as_the_others_dial_it(job: JobFile) -> None:
    for pod in pods(tuple(manifests(job)), "training"):
        index = pod.name.rpartition("-")[2]
        template = pod.environment["ROPEWALK_HOST_TEMPLATE"]
        assert template.format(role=pod.role, index=index) == f"{pod.name}.{pod.domain}:2222"


@pytest.mark.parametrize("grace_s", [10, 11, 30, 60, 3600])
def test_a_pod_has_time_to_save_after_it_was_told_to_stop(grace_s: int) -> None:
    text = f"name: a\nimage: b\nprogram: c\nkubernetes: {{grace_s: {grace_s}}}\n"
    for template in templates(manifests(parse_job(text))).values():
        (container,) = template["spec"]["containers"]
        delay_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert delay_s > 0
        assert delay_s + int(env(template)["ROPEWALK_LEAVE_GRACE_S"]) < grace_s


def env(template: Json) -> dict[str, str]:
    variables = template["spec"]["containers"][0]["env"]
    names = [each["name"] for each in variables]
    assert len(names) == len(set(names)), names
    return {each["name"]: each.get("value", "") for each in variables}


def test_the_users_text_reaches_a_pod_as_it_is() -> None:
    worker = templates(manifests(tricky()))["worker"]
    container = worker["spec"]["containers"][0]
    # Kubernetes replaces $(NAME) and reads $$ as $.
    assert container["args"][:4] == ["-m", "pack.train", "--", "$$HOME"]
    assert "$$(id)" in container["args"]
    assert env(worker)["A"] == "$$(ROPEWALK_ROLE) $$B"
    assert env(worker)["FLAG"] == "no"


def test_a_variable_of_a_secret_is_in_a_pod_once_and_a_roles_own_one_wins() -> None:
    job = parse_job(
        "name: digits\nimage: b\nprogram: c\n"
        "roles: {worker: {kubernetes: {container: {env: [{name: KEY, valueFrom: "
        "{secretKeyRef: {name: own, key: KEY}}}]}}}}\n"
        "kubernetes: {image_pull_secrets: [a, a], container: {env: [{name: HOME, valueFrom: "
        "{secretKeyRef: {name: of-all, key: HOME}}}, {name: KEY, valueFrom: "
        "{secretKeyRef: {name: of-all, key: KEY}}}]}}\n"
    )
    for kind in pod_templates(tuple(manifests(job))):
        [container] = kind.spec["containers"]
        names = [each["name"] for each in container["env"]]
        assert sorted(names) == sorted(set(names)), "an API server refuses a name that comes twice"
        sources = {each["name"]: each.get("valueFrom") for each in container["env"]}
        assert sources["HOME"]["secretKeyRef"]["name"] == "of-all"
        key = sources["KEY"]["secretKeyRef"]["name"]
        assert key == ("own" if kind.name == "digits-worker" else "of-all")
        assert kind.spec["imagePullSecrets"] == [{"name": "a"}]


def test_a_url_needs_no_volume_and_workers_none_at_all() -> None:
    assert "PersistentVolumeClaim" not in [each["kind"] for each in manifests(tricky())]
    made = templates(manifests(digits()))
    assert "ROPEWALK_MODEL_DIR" not in env(made["worker"])
    assert env(made["chief"])["ROPEWALK_MODEL_DIR"] == "/checkpoints/digits"
    lonely = templates(manifests(digits().with_counts({"chief": 0})))
    assert env(lonely["worker"])["ROPEWALK_MODEL_DIR"] == "/checkpoints/digits"


@pytest.mark.parametrize("mode", ["mtls", "token"])
def test_credentials_are_whole_folders_of_the_role(mode: str) -> None:
    job = parse_job(f"name: a\nimage: b\nprogram: c\nsecurity: {{mode: {mode}}}\n")
    made = templates(manifests(job))["ps"]
    secrets = [v["secret"]["secretName"] for v in made["spec"]["volumes"] if "secret" in v]
    assert secrets == (["a-ps-tls"] if mode == "mtls" else ["a-ps-tls", "a-ps-token"])
    assert "subPath" not in json.dumps(made)
    variables = env(made)
    assert variables["ROPEWALK_TLS_CERT"] == "/run/ropewalk/tls/tls.crt"
    assert ("ROPEWALK_TOKEN_FILE" in variables) == (mode == "token")
    assert "ROPEWALK_INSECURE" not in variables


def test_without_an_image_it_says_so() -> None:
    job = parse_job("name: a\nprogram: b.py\n")
    for render in (manifests, compose_document):
        with pytest.raises(ConfigurationError, match="the job file has no `image`"):
            render(job)


@pytest.mark.needs("kubectl or kustomize")
def test_it_has_the_shapes_of_the_kustomize_base() -> None:
    theirs = {_key(each): each for each in build("overlays/dev")}
    ours = {_key(each): each for each in manifests(digits())}
    assert set(theirs) == set(ours)
    for key, each in ours.items():
        other = theirs[key]
        assert _labels(each) == _labels(other), key
        if "template" not in each["spec"]:
            continue
        for field in ("podFailurePolicy", "podManagementPolicy", "serviceName", "completionMode",
                      "podReplacementPolicy", "maxFailedIndexes", "backoffLimitPerIndex",
                      "selector"):  # fmt: skip
            assert each["spec"].get(field) == other["spec"].get(field), (key, field)
        mine, yours = (one["spec"]["template"] for one in (each, other))
        assert mine["metadata"]["labels"] == yours["metadata"]["labels"]
        (container,), (of_base,) = mine["spec"]["containers"], yours["spec"]["containers"]
        for field in ("name", "command", "args", "ports", "startupProbe", "readinessProbe",
                      "livenessProbe", "lifecycle", "securityContext", "workingDir"):  # fmt: skip
            assert container.get(field) == of_base.get(field), (key, field)
        for field in ("securityContext", "terminationGracePeriodSeconds", "subdomain",
                      "automountServiceAccountToken", "enableServiceLinks", "restartPolicy",
                      "topologySpreadConstraints"):  # fmt: skip
            assert mine["spec"].get(field) == yours["spec"].get(field), (key, field)
        said, wanted = env(mine), env(yours)
        said.pop("ROPEWALK_SAVE_EVERY_STEPS")
        if "ROPEWALK_MODEL_DIR" in wanted:
            wanted["ROPEWALK_MODEL_DIR"] = "/checkpoints/digits"
        assert said == wanted, key


def _key(item: Json) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _labels(item: Json) -> Json:
    found = dict(item["metadata"]["labels"])
    assert found.pop("app.kubernetes.io/managed-by") in ("kustomize", "ropewalk")
    return found


def test_a_count_that_the_file_changes_leaves_the_templates_alone() -> None:
    first = manifests(digits())
    live = next(each for each in first if each["metadata"]["name"] == "digits-worker")
    live = {**live, "spec": {**live["spec"], "completions": 4, "parallelism": 4}}  # by `scale`
    again = documents_to_apply(digits(), live)
    assert _counts(again) == 4
    assert _template_texts(again) == _template_texts(first)
    more = documents_to_apply(digits().with_counts({"worker": 3}), live)
    assert _counts(more) == 3
    assert _template_texts(more) == _template_texts(first)


def shared_job(ps: int = 2) -> JobFile:
    """The digits with eight shares."""
    job = digits().with_counts({"ps": ps})
    return job.model_copy(update={"settings": job.settings.model_copy(update={"ps_shares": 8})})


def _set(objects: list[Json]) -> Json:
    return next(each for each in objects if each["kind"] == "StatefulSet")


def test_ps_stay_as_many_as_scale_has_made_them_until_the_file_says_another_number() -> None:
    first = manifests(shared_job())
    live = {**_set(first), "spec": {**_set(first)["spec"], "replicas": 4}}  # by `scale`
    again = documents_to_apply(shared_job(), None, live_ps=live)
    assert _set(again)["spec"]["replicas"] == 4
    more = documents_to_apply(shared_job(3), None, live_ps=live)
    assert _set(more)["spec"]["replicas"] == 3
    for objects in (again, more):
        assert _template_texts(objects) == _template_texts(first), "no pod is started again"


@pytest.mark.parametrize(
    ("form", "bound"),
    [
        (Form.OBJECTS, {"maxUnavailable": 1}),
        # Pods of Jobs have no scale, of which that would be a part.
        (Form.JOBSET, {"minAvailable": 2}),
        (Form.TRAINJOB, {"minAvailable": 2}),
    ],
    ids=["objects", "jobset", "trainjob"],
)
def test_one_ps_after_the_other_is_evicted_where_they_hand_over_what_they_have(
    form: Form, bound: Json
) -> None:
    def budgets(job: JobFile) -> list[Json]:
        return [each for each in manifests(job, form) if each["kind"] == "PodDisruptionBudget"]

    [budget] = budgets(shared_job(3))
    given = {name: value for name, value in budget["spec"].items() if name.startswith("m")}
    assert given == bound
    labels = _set(manifests(shared_job()))["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budgets(digits()) == []


def test_a_ps_whose_job_has_replicas_is_ready_when_the_next_one_may_be_stopped() -> None:
    def asked(replicas: int) -> dict[str, str]:
        settings = digits().settings.model_copy(update={"ps_replicas": replicas})
        objects = manifests(digits().model_copy(update={"settings": settings}))
        probes = {
            role: template["spec"]["containers"][0]["readinessProbe"]
            for role, template in templates(objects).items()
        }
        return {role: probe["grpc"]["service"] for role, probe in probes.items()}

    alone, replicated = asked(1), asked(2)
    assert set(alone.values()) == {"readiness"}
    assert replicated == {**alone, "ps": REPLICATED}


def test_fewer_shares_than_ps_are_refused_in_a_job_file() -> None:
    text = "name: few\nprogram: train.py\nroles: {ps: {count: 3}}\nsettings: {ps_shares: 2}\n"
    with pytest.raises(ConfigurationError, match="2 shares leave a ps without one: this has 3 ps"):
        parse_job(text, "few.yaml")


def _counts(objects: list[Json]) -> int:
    spec = next(e for e in objects if e["metadata"]["name"] == "digits-worker")["spec"]
    assert spec["completions"] == spec["parallelism"]
    return int(spec["completions"])


def _template_texts(objects: list[Json]) -> list[str]:
    return [json.dumps(each) for each in templates(objects).values()]


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [({}, ""), ({"ropewalk": 143}, "drained"), ({"ropewalk": 0}, "its work was complete"),
     ({"ropewalk": 137}, "killed: it did not leave"), ({"ropewalk": 4}, "ended with exit code 4")],
    ids=str,
)  # fmt: skip
def test_how_a_worker_has_left_is_told_by_its_exit_code(codes: dict[str, int], wanted: str) -> None:
    assert departure(codes).startswith(wanted)


# -- compose ---------------------------------------------------------------------------------------


def test_metrics_have_a_port_where_prometheus_looks_for_it() -> None:
    job = digits().model_copy(update={"metrics": True})
    made = tuple(manifests(job))
    assert problems(made) == []
    for kind in pod_templates(made):
        assert kind.template["metadata"]["annotations"]["prometheus.io/port"] == "2224"
        [container] = kind.spec["containers"]
        assert {"name": "metrics", "containerPort": 2224} in container["ports"]
        assert {"name": "ROPEWALK_METRICS_PORT", "value": "2224"} in container["env"]
    services = compose_document(job)["services"]
    published = [port for each in services.values() for port in each["ports"] if "2224" in port]
    assert published == [f"127.0.0.1:{9400 + index}:2224" for index in range(len(services))]


def test_services_of_compose_find_each_other_by_name() -> None:
    document = compose_document(digits())
    services = document["services"]
    assert list(services) == [f"{task.type}-{task.index}" for task in digits().tasks]
    for name, service in services.items():
        config = json.loads(service["environment"]["TF_CONFIG"])
        spec = cluster_of(config)
        task = config["task"]
        if task["type"] != "evaluator":
            address = spec.task_address(task["type"], task["index"])
            assert address == f"{name}:2222"
            resolved = resolve(
                SimpleClusterResolver(spec, task_type=task["type"], task_id=task["index"])
            )
            assert resolved.chief_address == "chief-0:2222"
        assert service["read_only"]
        ports = service.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in ports)
        assert bool(ports) == (name == "chief-0")


def test_the_users_text_reaches_a_container_as_it_is() -> None:
    service = compose_document(tricky())["services"]["worker-0"]
    assert "$$HOME" in service["command"]
    assert service["environment"]["A"] == "$$(ROPEWALK_ROLE) $$B"
    assert service["volumes"] == ["./credentials/worker:/run/secrets:ro"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2


# -- Slurm -----------------------------------------------------------------------------------------


@pytest.mark.needs("bash")
@pytest.mark.parametrize("job", MANY, ids=IDS)
def test_every_rank_of_the_script_is_the_task_that_its_command_is_for(
    job: JobFile, tmp_path: Path
) -> None:
    """The script runs with a false ``srun``, which starts every rank as Slurm would."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    ranks = len(job.tasks)
    fake(
        bin_folder / "srun",
        'while [ "${1#--}" != "$1" ]; do shift; done\n'
        f'for rank in $(seq 0 {ranks - 1}); do SLURM_PROCID=$rank "$@"; done\n',
    )
    # Each argument in a line, behind its rank.
    fake(
        bin_folder / "ropewalk",
        'printf "%s|%s|%s\\n" "$SLURM_PROCID" "$ROPEWALK_REPLICAS" "${ONLY:-}$ROPEWALK_TLS_CERT"\n'
        'printf "<%s>" "$@"; echo\n',
    )
    script = slurm_script(job, str(tmp_path)).replace("module load python", "true")
    said = subprocess.run(
        ["bash", "-s"],  # noqa: S607
        input=script, text=True, capture_output=True, check=False, timeout=60,
        env={"PATH": f"{bin_folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    blocks = re.findall(r"^(\d+)\|([^|]*)\|(.*)\n((?:.|\n)*?)(?=^\d+\||\Z)", said.stdout, re.M)
    assert [int(block[0]) for block in blocks] == list(range(ranks))
    for rank, replicas, own, arguments in blocks:
        task = slurm_task(job, int(rank), replicas)
        if job.security.mode != "insecure":
            assert own.endswith(f"{tmp_path}/credentials/{task}/tls.crt")
        assert own.startswith("worker") == (job.name == "tricky" and task == "worker")
        wanted = job.command(task)[1:]
        assert arguments.rstrip("\n") == "".join(f"<{word}>" for word in wanted)


def fake(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}")
    path.chmod(0o755)


def slurm_task(job: JobFile, rank: int, replicas: str) -> str:
    """The task that the Slurm resolver makes of a rank."""
    total = len(job.tasks)
    resolver = launcher_resolver(
        {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NODELIST": "node1",
            "SLURM_STEP_NUM_TASKS": str(total),
            "SLURM_STEP_TASKS_PER_NODE": str(total),
            "ROPEWALK_REPLICAS": replicas,
        }
    )
    assert resolver is not None
    assert isinstance(resolver.cluster_spec(), ClusterSpec)
    assert resolver.task_type is not None
    return resolver.task_type


def test_slurm_gives_every_task_the_largest_need() -> None:
    script = slurm_script(tricky(), "/home/me/job")
    for option in ("--ntasks=8", "--cpus-per-task=2", "--mem-per-cpu=1536M", "--gpus-per-task=2",
                   "--nodes=2", "--partition=gpu", "--account=team", "--time=1:00:00", "--qos=high",
                   "--signal=TERM@60"):  # fmt: skip
        assert f"#SBATCH {option}\n" in script
