"""The job file: what it says, and what is said about a mistake in it, with its place."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from helpers.jobfile import DIGITS, digits
from ropewalk.annexes.jobfile.job_commands import EXAMPLE, job_schema
from ropewalk.annexes.jobfile.model import SAID_ELSEWHERE, JobFile, JobSettings, Roles
from ropewalk.annexes.jobfile.reading import parse_job, read_job
from ropewalk.annexes.jobfile.yaml_text import dump_yaml
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId
from ropewalk.launch import cli

WHOLE = """\
name: digits
program: train.py
arguments: [--rate, 1e-3, 010, yes, 1:30]
environment: {LEVEL: 3, ON: off, EMPTY: }
roles:
  ps:
    count: 2
    resources: {cpu: 2, memory: 4Gi}
  worker: {count: 3, arguments: [--worker], environment: {LEVEL: 4}}
  evaluator:
settings:
  save_every_s: 30
"""
EMPTY = "kubernetes:\nslurm: {options: }\nstorage: {model_dir: , claim: ~}\n"


def refused(text: str) -> list[str]:
    """The lines of an error that begin with a place."""
    with pytest.raises(ConfigurationError) as caught:
        parse_job(text, "ropewalk.yaml")
    return [line for line in caught.value.message.splitlines() if line.startswith("ropewalk.yaml")]


def changed(before: str, after: str) -> str:
    assert before in WHOLE
    return WHOLE.replace(before, after)


def with_pod(fields: str) -> str:
    return f"{WHOLE}kubernetes: {{pod: {{{fields}}}}}\n"


def with_container(fields: str) -> str:
    return f"{WHOLE}kubernetes: {{container: {{{fields}}}}}\n"


def test_a_job_file_is_a_job() -> None:
    job = parse_job(WHOLE)
    assert job.tasks == [
        *[TaskId("ps", i) for i in range(2)],
        TaskId("chief", 0),
        *[TaskId("worker", i) for i in range(3)],
    ]
    assert job.leader == TaskId("chief", 0)
    assert job.command("ps") == [
        "ropewalk", "run", "train.py", "--", "--rate", "1e-3", "010", "yes", "1:30",
    ]  # fmt: skip
    assert job.command("worker") == [
        "ropewalk", "run", "train.py", "--", "--rate", "1e-3", "010", "yes", "1:30", "--worker",
    ]  # fmt: skip
    assert job.environment_of("worker") == {
        "LEVEL": "4", "ON": "off", "EMPTY": "", "ROPEWALK_SAVE_EVERY_S": "30.0",
    }  # fmt: skip
    assert job.role("ps").resources.millicpu == 2000
    assert job.role("ps").resources.memory_bytes == 4 * 1024**3
    assert not job.synchronous


def test_a_field_with_nothing_behind_it_says_nothing() -> None:
    assert parse_job(WHOLE + EMPTY) == parse_job(WHOLE)


def test_a_coordinator_alone_runs_the_program() -> None:
    job = parse_job("name: a\nmodule: pack.train\ncoordinator: true\n")
    assert job.command("chief") == ["ropewalk", "run", "-m", "pack.train"]
    assert job.command("worker") == ["ropewalk", "run"]


def test_the_examples_are_jobs() -> None:
    assert digits().count("worker") == 2
    example = parse_job(EXAMPLE)
    assert example.count("ps") == 2
    assert example.arguments == ["--epochs", "3"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (changed("count: 2", "cuont: 2"), "7:5: roles.ps.cuont: there is no such field; did you "
         "mean count?"),
        (changed("    count: 2", "    size: 2"), "7:5: roles.ps.size: there is no such field. "
         "Fields here: count, resources, arguments, environment, kubernetes."),
        (changed("count: 2", "count: -1"), "7:12: roles.ps.count: it should be greater than or "
         "equal to 0, got -1. How many tasks."),
        (changed("count: 2", "count: yes"), "7:12: roles.ps.count: it should be a valid integer, "
         "got 'yes'. How many tasks."),
        (changed("count: 2", "count: true"), "7:12: roles.ps.count: it should be a valid integer"),
        (changed("cpu: 2", "cpu: two"), "8:22: roles.ps.resources.cpu: 'two' does not read as this "
         "field does. Processors, e.g. 2, 0.5 or 500m."),
        (changed("name: digits", "name: My_Job"), "1:7: name: 'My_Job' does not read"),
        (changed("program", "porgram"), "2:1: porgram: there is no such field; did you mean "
         "program?"),
        (changed("program: train.py\n", ""), "1:1: module: a job has one of program and module; "
         "neither is given"),
        (WHOLE + "module: a.b\n", "13:1: module: a job has one of program and module; both"),
        (changed("{LEVEL: 3,", "{TF_CONFIG: 3,"), "4:15: environment.TF_CONFIG: the launcher sets "
         "TF_CONFIG; say what it is for by `roles`"),
        (changed("{LEVEL: 4}", "{ROPEWALK_HOST: a}"), "9:59: roles.worker.environment.ROPEWALK_HOST"
         ": the launcher sets ROPEWALK_HOST; say what it is for under `settings`"),
        (changed("{LEVEL: 3,", "{3LEVEL: 3,"), "4:15: environment.3LEVEL: '3LEVEL' does not read"),
        (changed("save_every_s", "save_ever_s"), "12:3: settings.save_ever_s: there is no such "
         "field; did you mean save_every_s?"),
        (changed("save_every_s", "model_dir"), "12:3: settings.model_dir: model_dir is no setting "
         "of a job file: say it by storage.model_dir"),
        (changed("save_every_s", "health_port"), "12:3: settings.health_port: health_port is no "
         "setting of a job file: the launcher decides it"),
        (WHOLE + "storage: {model_dir: models}\n", "13:11: storage.model_dir: models is relative"),
        (WHOLE + "storage: {model_dir: s3://a, claim: b}\n", "13:30: storage.claim: model_dir is "
         "the URL s3://a"),
        (with_container("env: [{name: A, valueFrom: {secretKeyRef: {key: a, nam: b}}}]"), "13:77: "
         "kubernetes.container.env[0].valueFrom.secretKeyRef.nam: there is no such field in Kub"),
        (with_container("env: [{name: LEVEL, value: b}]"), "13:33: "
         "kubernetes.container.env[0].name: environment has LEVEL, too; keep one"),
        (with_container("env: [{name: TF_CONFIG, value: b}]"), "13:33: "
         "kubernetes.container.env[0].name: the launcher sets TF_CONFIG"),
        (with_container("env: [{name: POD_NAMESPACE, value: b}]"), "13:33: "
         "kubernetes.container.env[0].name: the launcher sets POD_NAMESPACE; say what it is for by "
         "`kubernetes.namespace`"),
        (with_container("env: {A: b}"), "13:26: kubernetes.container.env: {'A': 'b'} is not of "
         "type 'array'"),
        (with_container("envfrom: []"), "13:26: kubernetes.container.envfrom: there is no such "
         "field in Kubernetes"),
        (with_container("command: [sh]"), "13:26: kubernetes.container.command: the launcher sets "
         "command of the container: say it by program and arguments"),
        (with_container("lifecycle: {}"), "13:26: kubernetes.container.lifecycle: the launcher "
         "sets lifecycle of the container: take it away"),
        (with_container("securityContext: {privileged: true}"), "13:44: "
         "kubernetes.container.securityContext.privileged: privileged is always as `restricted` "
         "demands"),
        (with_container("volumeMounts: [{name: a, mountPath: /tmp/}]"), "13:51: kubernetes."
         "container.volumeMounts[0].mountPath: a pod has a volume at /tmp already"),
        (with_container("volumeMounts: [{name: a, mountPath: /checkpoints}]"), "13:51: kubernetes."
         "container.volumeMounts[0].mountPath: a pod has a volume at /checkpoints already"),
        (with_container("volumeMounts: [{name: a, mountPath: /m}]") + "storage: {model_dir: /m}\n",
         "13:51: kubernetes.container.volumeMounts[0].mountPath: storage.model_dir is there"),
        (with_pod("volumes: [{name: tmp, emptyDir: {}}]"), "13:31: "
         "kubernetes.pod.volumes[0].name: a pod has a volume tmp already"),
        (with_pod("volumes: [{name: a, claim: b}]"), "13:40: kubernetes.pod.volumes[0].claim: "
         "there is no such field in Kubernetes"),
        (with_pod("restartPolicy: Always"), "13:20: kubernetes.pod.restartPolicy: the launcher "
         "sets restartPolicy of the pod: take it away"),
        (with_pod("terminationGracePeriodSeconds: 9"), "the launcher sets "
         "terminationGracePeriodSeconds of the pod: say it by kubernetes.grace_s"),
        (with_pod("securityContext: {runAsUser: 0}"), "13:38: kubernetes.pod.securityContext."
         "runAsUser: a task does not run as root"),
        (with_pod("securityContext: {runAsNonRoot: false}"), "runAsNonRoot is always as"),
        (with_pod("tolerations: [{key: 1}]"), "13:35: kubernetes.pod.tolerations[0].key: 1 is not "
         "of type 'string'"),
        (WHOLE + "kubernetes: {labels: {app.kubernetes.io/name: a}}\n", "13:23: "
         "kubernetes.labels.app.kubernetes.io/name: the launcher sets app.kubernetes.io/name"),
        (WHOLE + "kubernetes: {node_selector: {a: b}}\n", "13:14: kubernetes.node_selector: pods "
         "are described in Kubernetes' own words; say it by pod.nodeSelector"),
        (WHOLE + "kubernetes: {probes: {liveness_s: 5}}\n", "13:35: kubernetes.probes.liveness_s: "
         "it should be greater than or equal to 60, got 5"),
        (changed("count: 2", "kubernetes: {pod: {priorityClass: a}}"), "7:24: "
         "roles.ps.kubernetes.pod.priorityClass: there is no such field in Kubernetes"),
        (changed("count: 2", "kubernetes: {contaner: {}}"), "7:18: "
         "roles.ps.kubernetes.contaner: there is no such field; did you mean container?"),
        (changed("settings:\n  save_every_s: 30", "coordinator: true\nsettings: {}").replace(
            "count: 3", "count: 0"), "11:1: coordinator: a coordinator needs a chief"),
        ("name: a\nname: b\n", "2:1: name is here a second time, after line 1; keep one"),
        ("\tname: a\n", "1:1: this is no YAML: while scanning for the next token, found character "
         "'\\t' that cannot start any token; indent with spaces, not with tabs"),
        ("name: a: b\n", "1:8: this is no YAML: mapping values are not allowed here; quote text"),
        ("name: !!python/object:os.system a\n", "1:7: a tag (tag:yaml.org,2002:python/obj"),
        ("name: !secret a\n", "1:7: a tag (!secret) has no meaning here"),
        ("", "1:1: a job file is empty"),
        ("- a\n", "1:1: a job file is no mapping"),
        ("name: &a [*a]\n", ": more than 20000 values, or 50 levels"),
        ("base: &b {name: a}\n<<: *b\n", "2:1: merge keys are not read; write the fields out"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) and "\n" not in value else "",
)  # fmt: skip
def test_a_mistake_is_named_with_its_place_and_what_to_do(text: str, wanted: str) -> None:
    (first, *_) = refused(text)
    assert wanted in first


def test_every_mistake_is_told_at_once_with_its_line() -> None:
    text = changed("count: 2", "cuont: 2").replace("count: 3", "count: -1")
    with pytest.raises(ConfigurationError) as caught:
        parse_job(text, "ropewalk.yaml")
    lines = caught.value.message.splitlines()
    assert [line[:18] for line in lines if line.startswith("rope")] == [
        "ropewalk.yaml:7:5:", "ropewalk.yaml:9:19",
    ]  # fmt: skip
    # Below each its line, and a mark below the column.
    assert lines[1:3] == ["        cuont: 2", "        ^"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is a FIFO, no plain file"),
        (Path.mkdir, "it is a folder, no plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, no plain file"),
        (lambda path: path.write_bytes(b"#" * 4_000_001), "4000001 bytes, at most 4000000"),
        (lambda path: path.write_bytes(b"name: \xff"), "cannot be read: 'utf-8' codec"),
    ],
    ids=["FIFO", "folder", "device", "large", "no text"],
)
def test_a_file_that_is_none_is_refused_at_once(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "job.yaml")
    with pytest.raises(ConfigurationError, match=said):
        read_job(tmp_path / "job.yaml")
    with pytest.raises(ConfigurationError, match="a path has no NUL"):
        read_job(tmp_path / "job\0.yaml")


def test_a_nul_in_a_value_is_named_with_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"ropewalk.yaml:2:10: a NUL can be in no path"):
        parse_job('name: job\nprogram: "train\\0.py"\n')


def test_a_nul_in_an_argument_of_the_command_is_refused() -> None:
    for arguments in (["local", "a\0.py"], ["checkpoint", "verify", "a\0b"], ["k8s", "list", "\0"]):
        error = CliRunner().invoke(cli.ropewalk, arguments, standalone_mode=False).exception
        assert isinstance(error, ConfigurationError)
        assert "has a NUL; take it out" in error.message


def test_a_file_that_is_missing_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`ropewalk job example` prints a job file"):
        read_job(tmp_path / "ropewalk.yaml")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "no", "y", "on", "010", "1:30", "~", "null", "a: b", "#", "1e3", "é\n"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "no", "y", "1", "null"]), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_whatever_is_in_a_job_file_is_a_job_or_an_error_with_a_place(data: object) -> None:
    with pytest.raises(ConfigurationError, match=r"ropewalk\.yaml"):
        parse_job(dump_yaml({"name": "a", "other": data}), "ropewalk.yaml")


def test_without_its_schemas_fields_of_a_pod_are_left_to_the_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)
    assert parse_job(with_pod("tolerationz: []")).kubernetes.pod == {"tolerationz": []}


def test_what_an_api_server_refuses_has_its_place_in_the_file() -> None:
    job = parse_job(
        changed("count: 2", "kubernetes: {pod: {tolerations: [{operator: Exists, value: a}]}}")
        + "kubernetes: {pod: {tolerations: []}, container: {env: [{name: A, value: 1}]}}\n",
        "ropewalk.yaml",
    )
    text = "spec.template.spec.tolerations[0].operator: Invalid value"
    assert job.place_of(["ps"], text) == "ropewalk.yaml:7:24"
    assert job.place_of(["worker"], text) == "ropewalk.yaml:13:20"
    of_set = (
        "spec.replicatedJobs[1].template.spec.template.spec.containers[0].env[9].name: Required"
    )
    assert job.place_of(["worker"], of_set) == "ropewalk.yaml:13:50"
    assert job.place_of(["worker"], "spec.template.spec.volumes[0].name") == ""
    assert job.place_of(["worker"], "spec.completions: Invalid value") == ""


# -- the schema --------------------------------------------------------------------------------


def test_the_schema_has_every_field_with_a_description() -> None:
    schema = job_schema()
    assert schema["required"] == ["name"]
    parts = {"Job": schema, **schema["$defs"]}
    for name, part in parts.items():
        if part.get("type") == "object":
            assert part["additionalProperties"] is False, name
            for field, about in part["properties"].items():
                assert about.get("description"), f"{name}.{field}"
    settings = set(parts["JobSettings"]["properties"])
    assert settings == set(JobSettings.model_fields) - set(SAID_ELSEWHERE)
    cpu = parts["Resources"]["properties"]["cpu"]
    assert "number" in cpu["type"]


def test_the_schema_accepts_the_examples_and_refuses_a_typo() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import yaml

    validator = jsonschema.Draft202012Validator(job_schema())
    for text in (DIGITS.read_text(), EXAMPLE):
        validator.validate(yaml.safe_load(text))
    assert not validator.is_valid({"name": "a", "program": "b", "roles": {"worker": {"cuont": 1}}})


def test_the_commands_print_schema_and_example_and_check_a_file(tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli.ropewalk, ["job", *arguments], standalone_mode=False)
        assert result.exception is None, result.exception
        return result.output

    assert json.loads(said("schema"))["title"] == "ropewalk.yaml"
    (tmp_path / "ropewalk.yaml").write_text(said("example"))
    assert "my-job has 5 tasks: 2 ps, 1 chief, 2 worker" in said(
        "check", "--job", str(tmp_path / "ropewalk.yaml")
    )


def test_counts_of_the_command_line_win_and_must_fit() -> None:
    assert parse_job(WHOLE).with_counts({"worker": 1}).count("worker") == 1
    with pytest.raises(ConfigurationError, match="nobody trains"):
        parse_job(WHOLE).with_counts({"worker": 0, "chief": 0})


def test_a_job_is_made_in_code_as_well() -> None:
    job = JobFile(name="a", program="b.py", roles=Roles())
    assert re.fullmatch(r"[a-z]+", job.name)
    assert job.count("ps") == 1
