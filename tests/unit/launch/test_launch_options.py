"""Who a process is and with which settings, from flags, the environment and TF_CONFIG."""

import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from helpers.calls import Calls
from helpers.commands import command_case
from ropewalk.core.errors import ConfigurationError, RopewalkError, TFConfigError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.versions import own_versions
from ropewalk.launch import cli
from ropewalk.launch.options import TaskFlags, resolve_task, take_settings

FULL = {
    "cluster": {
        "chief": ["127.0.0.1:2221"],
        "ps": ["127.0.0.1:2222", "127.0.0.1:2223"],
        "worker": ["127.0.0.1:2224", "127.0.0.1:2225"],
        "evaluator": ["127.0.0.1:2226"],
    },
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}
CLUSTER_FLAG = json.dumps({"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]})
CLUSTER = '{"chief":["127.0.0.1:1"],"ps":["127.0.0.1:2"],"worker":["127.0.0.1:3"]}'


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives this machine a name."""
    return lambda name: monkeypatch.setattr(socket, "gethostname", lambda: name)


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, restored_logger: object, named: Callable[[str], None]
) -> None:
    for name in ("TF_CONFIG", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    named("localhost")


def show(*arguments: str, config: object = None, role: str = "run", **env: str) -> Result:
    if config is not None:
        env["TF_CONFIG"] = config if isinstance(config, str) else json.dumps(config)
    command = [role, "--print-tf-config", *arguments]
    return CliRunner().invoke(cli.ropewalk, command, env=env, standalone_mode=False)


def shown(*arguments: str, **more: Any) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """(the resolved TF_CONFIG, what → (value, from))."""
    result = show(*arguments, **more)
    assert result.exception is None, result.exception
    rows = {}
    for line in result.stderr.splitlines():
        if line.startswith("│"):
            what, value, source = (cell.strip() for cell in line.strip("│").split("│"))
            rows[what] = (value, source)
    config = json.loads(result.stdout)
    assert isinstance(config, dict)
    return config, rows


def test_form_a_the_full_tf_config() -> None:
    config, rows = shown(config=FULL)
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"] == FULL["cluster"]
    assert rows["task.type"] == ("worker", "TF_CONFIG")
    assert rows["task.index"] == ("1", "TF_CONFIG")
    assert rows["address"] == ("127.0.0.1:2225", "TF_CONFIG")
    assert rows["chief"] == ("chief:0 127.0.0.1:2221", "the spec")
    assert rows["/job:ps/task:1"] == ("127.0.0.1:2223", "TF_CONFIG")
    assert rows["evaluator"][0].startswith("127.0.0.1:2226 (not part of training)")


def test_form_b_a_dynamic_worker_sees_itself_and_the_ps() -> None:
    cluster = {"ps": ["127.0.0.1:2222"], "worker": {"3": "127.0.0.1:2227"}}
    config, rows = shown(config={"cluster": cluster, "task": {"type": "worker", "index": "3"}})
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["sparseCluster"] == cluster
    assert rows["address"] == ("127.0.0.1:2227", "TF_CONFIG")
    assert rows["chief"][0] == "chief:0"  # its address is for the ps to tell


def test_form_b_the_position_of_a_dynamic_ps_is_not_its_index() -> None:
    cluster = {"ps": ["127.0.0.1:2223"], "worker": {"0": "127.0.0.1:2227"}}
    config, rows = shown(config={"cluster": cluster, "task": {"type": "ps", "index": 1}})
    assert rows["address"] == ("127.0.0.1:2223", "TF_CONFIG")
    assert config["sparseCluster"]["ps"] == {"1": "127.0.0.1:2223"}


def test_form_c_under_the_key_sparse_cluster() -> None:
    cluster = {"ps": ["127.0.0.1:2222"], "worker": {"1": "127.0.0.1:2227"}}
    config, rows = shown(config={"sparseCluster": cluster, "task": {"type": "worker", "index": 1}})
    assert config["sparseCluster"] == cluster
    assert rows["address"] == ("127.0.0.1:2227", "TF_CONFIG")


def test_form_d_an_empty_cluster_takes_the_rest_from_flags() -> None:
    config, rows = shown(
        "--cluster",
        CLUSTER_FLAG,
        config={"cluster": {}, "task": {"type": "chief", "index": 0}},
    )
    assert config["cluster"] == json.loads(CLUSTER_FLAG)
    assert rows["/job:ps/task:0"] == ("127.0.0.1:2", "--cluster")
    assert rows["task.index"] == ("0", "TF_CONFIG")


def test_form_e_without_anything_the_process_is_the_whole_cluster() -> None:
    config, rows = shown()
    assert config == {"cluster": {}, "task": {"type": "chief", "index": 0}}
    assert rows["cluster"] == (
        "this process alone",
        "none given: this process is the whole cluster",
    )


@pytest.mark.parametrize("form", ["a", "b", "c"])
def test_what_is_printed_reads_back_as_the_same(form: str) -> None:
    sparse = {"ps": ["127.0.0.1:2222"], "worker": {"1": "127.0.0.1:2227"}}
    task = {"type": "worker", "index": 1}
    config = {
        "a": FULL,
        "b": {"cluster": sparse, "task": task},
        "c": {"sparseCluster": sparse, "task": task},
    }[form]
    first, _ = shown(config=config)
    assert shown(config=first)[0] == first


def test_a_role_command_and_index_win_over_tf_config() -> None:
    config, rows = shown("--index", "0", config=FULL, role="ps")
    assert config["task"] == {"type": "ps", "index": 0}
    assert rows["task.type"] == ("ps", "the command")
    assert rows["task.index"] == ("0", "--index")


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "SLURM_PROCID"])
def test_the_index_comes_from_the_launchers_variable(name: str) -> None:
    config, rows = shown(
        "--role", "worker", "--replicas", "chief=1,ps=2,worker=3",
        "--host-template", "{role}-{index}.train:2222", **{name: "2"},
    )  # fmt: skip
    assert config["task"] == {"type": "worker", "index": 2}
    assert config["cluster"]["ps"] == ["ps-0.train:2222", "ps-1.train:2222"]
    assert rows["task.index"] == ("2", name)
    assert rows["address"] == ("worker-2.train:2222", "--replicas and --host-template")


SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "node[09-10]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "CUDA_VISIBLE_DEVICES": "",
}
SAGEMAKER = {"SM_CURRENT_HOST": "algo-2", "SM_HOSTS": '["algo-1","algo-2"]'}


def test_the_tasks_of_srun_are_workers() -> None:
    config, rows = shown(**SLURM)
    assert config["task"] == {"type": "worker", "index": 2}
    assert config["cluster"]["worker"][2:] == ["node10:8888", "node10:8889"]
    assert rows["task.type"] == ("worker", "SLURM_PROCID")
    assert rows["address"] == (
        "node10:8888", "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE"
    )  # fmt: skip
    assert rows["chief"] == ("worker:0 node09:8888", "no chief listed: worker:0 leads")


def test_replicas_alone_give_the_tasks_of_srun_their_roles() -> None:
    config, rows = shown("--replicas", "chief=1,ps=1,worker=2", "--port", "3000", **SLURM)
    assert config["cluster"] == {
        "chief": ["node09:3000"],
        "ps": ["node09:3001"],
        "worker": ["node10:3000", "node10:3001"],
    }
    assert rows["task.type"] == ("worker", "SLURM_PROCID")
    assert rows["/job:ps/task:0"][1].endswith("SLURM_STEP_TASKS_PER_NODE, the jobs")


def test_the_hosts_of_sagemaker_are_workers() -> None:
    config, rows = shown(**SAGEMAKER)
    assert config["cluster"] == {"worker": ["algo-1:2223", "algo-2:2223"]}
    assert rows["task.index"] == ("1", "SM_CURRENT_HOST")
    assert rows["address"] == ("algo-2:2223", "SM_HOSTS")


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        pytest.param(FULL, (), id="TF_CONFIG"),
        pytest.param({}, (), id="an empty TF_CONFIG"),
        pytest.param(None, ("--cluster", CLUSTER_FLAG, "--role", "ps", "--index", "0"), id="flags"),
    ],
)
def test_tf_config_and_flags_go_before_a_launcher(
    config: object, arguments: tuple[str, ...]
) -> None:
    _, rows = shown(*arguments, config=config, **SLURM)
    assert not any("SLURM" in source for _, source in rows.values())


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        pytest.param(("--role", "ps"), SLURM,
                     "the role is ps, but Slurm says that this process is worker:2", id="a role"),
        pytest.param(("--index", "0"), SLURM, "--index is 0, but Slurm says", id="an index"),
        pytest.param(("--replicas", "ps=1,worker=9"), SLURM,
                     "have 10 tasks, but the Slurm step runs 4", id="too many tasks"),
        pytest.param(("--port", "3000"), {}, "--port is for tasks that Slurm", id="a port"),
        pytest.param(("--replicas", "ps=1"), {}, "belong together", id="replicas without srun"),
        pytest.param((), {**SLURM, **SAGEMAKER}, "under Slurm and under SageMaker", id="two"),
    ],
)  # fmt: skip
def test_flags_that_contradict_a_launcher_are_an_error(
    arguments: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    error = show(*arguments, **env).exception
    assert isinstance(error, ConfigurationError)
    assert said in error.message


def test_the_index_comes_from_the_host_name_last(named: Callable[[str], None]) -> None:
    named("ps-1")
    arguments = ["--replicas", "ps=2,worker=1", "--host-template", "{role}-{index}:1"]
    _, rows = shown(*arguments, role="ps")
    assert rows["task.index"] == ("1", "host name ps-1")


def test_a_chief_elsewhere_is_named_by_a_flag() -> None:
    cluster = {"ps": ["127.0.0.1:2222"], "worker": {"0": "127.0.0.1:2227"}}
    _, rows = shown(
        *("--chief", "127.0.0.1:99"),
        config={"cluster": cluster, "task": {"type": "worker", "index": 0}},
    )
    assert rows["chief"] == ("chief:0 127.0.0.1:99", "--chief")


@pytest.mark.parametrize(
    ("arguments", "config", "words"),
    [
        pytest.param([], "{", ["TF_CONFIG is not JSON", "line 1"], id="not JSON"),
        pytest.param([], "[]", ["JSON object"], id="not an object"),
        pytest.param([], {"cluster": FULL["cluster"]}, ["no task"], id="no task"),
        pytest.param(
            [],
            FULL | {"task": {"type": "worker", "index": 7}},
            ["task.index 7 is out of range"],
            id="index",
        ),
        pytest.param([], FULL | {"task": {"type": "boss", "index": 0}}, ["boss"], id="type"),
        pytest.param(["--replicas", "ps=1"], None, ["--host-template"], id="half a template"),
        pytest.param(["--cluster", "{"], None, ["--cluster"], id="cluster flag is not JSON"),
        pytest.param(["--cluster", "[1]"], None, ["--cluster"], id="cluster flag is no object"),
        pytest.param(["--cluster", CLUSTER_FLAG], None, ["--role"], id="no role"),
        pytest.param(
            ["--cluster", CLUSTER_FLAG, "--role", "ps"],
            None,
            ["which ps", "--index", "JOB_COMPLETION_INDEX"],
            id="no index",
        ),
        pytest.param(["--join-timeout-s", "soon"], None, ["--join-timeout-s", "soon"], id="text"),
        pytest.param(["--lease-s", "-1"], None, ["--lease-s", "-1"], id="setting out of range"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_name(
    arguments: list[str], config: object, words: list[str]
) -> None:
    error = show(*arguments, config=config).exception
    assert isinstance(error, ConfigurationError)
    assert all(word in error.message for word in words), error.message
    assert error.exit_code == 2


def test_errors_of_tf_config_are_of_their_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(TFConfigError):
        resolve_task(TaskFlags())


def command_of(name: str) -> click.Command:
    """A command as the program finds it."""
    found = cli.ropewalk.get_command(click.Context(cli.ropewalk), name)
    assert found is not None
    return found


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "ps", "chief", "worker", "evaluator", "local"])
def test_every_setting_is_a_flag_with_its_meaning(command: str) -> None:
    parameters = {item.name: item for item in command_of(command).params}
    for name, field in Settings.model_fields.items():
        option = parameters[name]
        assert isinstance(option, click.Option)
        if (command, name) == ("local", "standalone"):
            continue  # it runs all of a standalone cluster
        assert f"--{name.replace('_', '-')}" in option.opts
        assert field.description is not None
        assert field.description in (option.help or "")


def test_flags_become_settings_and_leave_the_rest() -> None:
    flags: dict[str, Any] = {"lease_s": "3.5", "insecure": True, "model_dir": None, "role": "ps"}
    settings = take_settings(flags)
    assert (settings.lease_s, settings.insecure, settings.model_dir) == (3.5, True, "")
    assert flags == {"role": "ps"}


def test_a_training_task_needs_a_script() -> None:
    result = CliRunner().invoke(cli.ropewalk, ["run"], standalone_mode=False)
    assert isinstance(result.exception, ConfigurationError)
    assert "SCRIPT" in result.exception.message


# -- status and the entry point --------------------------------------------------------------

STATUS = {
    "phase": "done",
    "reason": "",
    "age_s": 12.0,
    "global_step": 302,
    "total_steps": 300,
    "tasks": [
        {
            "task": {"type": "worker", "index": 1},
            "state": "done",
            "since_s": 1.5,
            "address": "127.0.0.1:2222",
            "detail": "",
            "generation": 5,
            "report": {"steps": 302, "pushes": 300, "bytes_pushed": 2048},
            "counters": None,
            "pid": 1,
            "host": "here",
        }
    ],
    "last_checkpoint": "runs/x/ckpt-0000000302",
    "last_checkpoint_step": 302,
    "versions": asdict(own_versions()),
}


def status_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    cli.main(["status", str(folder)])
    return capsys.readouterr().out


def test_status_of_an_ended_job_comes_from_its_model_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status.json").write_text(json.dumps(STATUS))
    text = status_of(tmp_path, capsys)
    for word in ("job done", "global step 302/300", "worker:1", "302", "2.0 KiB", "127.0.0.1:2222"):
        assert word in text


def test_status_in_a_pipe_is_not_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    test_status_of_an_ended_job_comes_from_its_model_directory(tmp_path, capsys)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param(None, "no status.json", id="absent"),
        pytest.param("{", "status.json", id="truncated"),
        pytest.param("{}", "status.json", id="foreign"),
    ],
)
def test_a_folder_without_a_readable_status_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, word: str
) -> None:
    if text is not None:
        (tmp_path / "status.json").write_text(text)
    with pytest.raises(SystemExit) as caught:
        cli.main(["status", str(tmp_path)])
    assert caught.value.code in (2, 4)
    stderr = capsys.readouterr().err
    assert stderr.startswith("ropewalk: ")
    assert word in stderr
    assert str(tmp_path) in stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["nothing"], 2, ["No such command"], id="unknown command"),
        pytest.param(["ps", "--fast"], 2, ["--fast"], id="unknown flag"),
        pytest.param(["run", "--index", "-1"], 2, ["--index"], id="index below zero"),
        pytest.param(["run", "--role", "boss"], 2, ["boss"], id="unknown role"),
        pytest.param(["local"], 2, ["SCRIPT"], id="no script"),
        pytest.param(["local", "gone.py"], 2, ["gone.py", "does not exist"], id="script is gone"),
        pytest.param(["local", ".", "--plain"], 2, ["is a folder"], id="script is a folder"),
        pytest.param(["local", "--ps", "-1", "x.py"], 2, ["--ps"], id="ps below zero"),
        pytest.param(
            ["local", "--no-chief", "--workers", "0", "x.py"], 2, ["at least one worker"], id="none"
        ),
    ],
)
def test_wrong_usage_is_two_and_no_traceback(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == code
    stderr = capsys.readouterr().err
    assert all(word in stderr for word in words), stderr
    assert "Traceback" not in stderr


def test_an_error_of_ours_ends_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], calls: Calls
) -> None:
    class OddError(RopewalkError):
        exit_code = ExitCode.REFUSED

    calls.fail(cli.ropewalk, "main", OddError("it went wrong"))
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 6
    assert capsys.readouterr().err == "ropewalk: it went wrong\n"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What a command is called with."""

    def parse(command: str, *arguments: str) -> dict[str, Any]:
        got: dict[str, Any] = {}
        monkeypatch.setattr(command_of(command), "callback", lambda **values: got.update(values))
        given = [command, "--lease-s", "3", *arguments]
        CliRunner().invoke(cli.ropewalk, given, standalone_mode=False, catch_exceptions=False)
        return got

    return parse


@pytest.mark.parametrize("between", [[], ["--"]], ids=["plain", "after --"])
@pytest.mark.parametrize("command", ["run", "worker", "local"])
def test_what_follows_the_script_is_the_scripts(
    command: str, between: list[str], parsed: Callable[..., dict[str, Any]]
) -> None:
    got = parsed(command, "train.py", *between, "--lr", "0.1", "--lease-s", "4", "data")
    assert got["script"] == "train.py"
    assert got["arguments"] == ("--lr", "0.1", "--lease-s", "4", "data")
    assert got["lease_s"] == "3"


def test_the_version_is_told_without_an_install(
    capsys: pytest.CaptureFixture[str], calls: Calls
) -> None:
    missing = metadata.PackageNotFoundError("ropewalk")
    calls.fail(metadata, "version", missing)  # PYTHONPATH=src is enough to run
    cli.main(["--version"])
    assert "ropewalk" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "worker", "local"])
def test_with_m_the_script_is_a_module(command: str, parsed: Callable[..., dict[str, Any]]) -> None:
    got = parsed(command, "-m", "package.train", "-m", "x")
    assert (got["module"], got["script"], got["arguments"]) == (True, "package.train", ("-m", "x"))


def help_of(command: str) -> str:
    text = CliRunner().invoke(cli.ropewalk, [command, "--help"]).stdout
    return " ".join(text.split())


def test_the_help_of_local_tells_its_own_defaults() -> None:
    text = help_of("local")
    assert "[default: 2, or 0 with --save-every-steps]" in text
    assert "[default: a new folder in runs/]" in text
    assert "which is well where the others do their work. [default: -1]" in text
    for flag in ("--log-format", "--supervise", "--chief-returns"):  # the launcher decides
        assert flag not in text


NO_EFFECT = [
    ("local --chief-returns x.py", "--restarts says how often"),
    ("local --no-chief-returns x.py", "--restarts says"),
    ("local --health-port 1 x.py", "cannot share a port"),
    ("local --metrics-port 1 x.py", "cannot share a port"),
    ("local --log-format time x.py", "shown with the task"),
    ("local --supervise x.py", "by the launcher itself"),
    ("local --stay-without-chief x.py", "once its job is over"),
    ("local --port 1 x.py", "belongs to --standalone"),
    ("local --max-jobs 1 x.py", "belongs to a standalone cluster"),
    ("local --job x --coordinator", "`coordinator: true`"),
    ("local --standalone --restarts 2", "to one job"),
    ("local --standalone --plain", "to one job"),
    ("local --standalone --gpus-per-worker 2", "to one job"),
    ("local --standalone --chief-returns", "--restarts"),
    ("run --host 127.0.0.1 x.py", "without a cluster this process is alone"),
    ("run --max-node-tasks 1 x.py", "belongs to a standalone cluster"),
    (f"worker --index 0 --cluster {CLUSTER} --max-jobs 1 x.py", "a standalone cluster"),
    (f"chief --index 0 --cluster {CLUSTER} --chief-returns", "which lost tasks of a job"),
    (f"ps --index 0 --cluster {CLUSTER} --standalone --stay-without-chief", "which lost tasks"),
    (f"ps --index 0 --cluster {CLUSTER} --standalone --model-dir m", "the chief of"),
    (f"ps --index 0 --cluster {CLUSTER} --standalone --max-jobs 1", "the chief of"),
    ("ps --index 0 --save-every-s 5", "a ps runs no program"),
    ("status --save-every-s 5", "a setting of tasks"),
    ("status --supervise", "a setting of tasks"),
    ("jobs --cluster a:1 --lease-s 5", "a setting of tasks"),
    ("submit --cluster a:1 --detach --grace-s 5 x.py", "nothing is followed"),
    ("submit --cluster a:1 --detach --plain x.py", "nothing is followed"),
    ("scale a:1 --ps 2 --no-wait --timeout-s 5", "nothing is waited for"),
    ("k8s status --name a --job b", "--name says which job"),
    ("k8s delete --name a --timeout-s 5", "without --namespace-too"),
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        command_case(arguments.split(), arguments, words, name=arguments)
        for arguments, words in NO_EFFECT
    ],
)
def test_a_flag_without_an_effect_is_refused_with_what_to_say_instead(
    arguments: str, words: str
) -> None:
    result = CliRunner().invoke(cli.ropewalk, arguments.split(), standalone_mode=False)
    assert isinstance(result.exception, ConfigurationError)
    assert "has no effect here: " in str(result.exception)
    assert words in str(result.exception)


def test_a_variable_without_an_effect_is_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SAVE_EVERY_S", "5")
    monkeypatch.setenv("ROPEWALK_MAX_JOBS", "5")
    shown("--index", "0", "--cluster", CLUSTER_FLAG, role="ps")


@pytest.mark.parametrize(
    "flags",
    [
        ["--replicas", "ps=1"],
        ["--replicas", "ps=1", "--host-template", "{role}-{index}:1"],
        ["--port", "1"],
    ],
    ids=["replicas", "template", "port"],
)
def test_a_cluster_is_named_in_one_way(flags: list[str]) -> None:
    result = show("--cluster", CLUSTER_FLAG, "--index", "0", *flags, role="ps")
    assert isinstance(result.exception, ConfigurationError)
    assert flags[-2] in str(result.exception) or flags[0] in str(result.exception)


def test_the_help_of_ps_lists_no_flags_of_training() -> None:
    text = help_of("ps")
    assert "--max-sessions" in text
    assert "--model-dir" in text  # a ps writes below its own
    assert "--request-timeout-s" in text  # steps wait for each other so long
    for flag in ("--save-every-s", "--nonfinite-limit", "--wait-for-workers"):
        assert flag not in text


def test_without_a_job_on_this_machine_the_status_says_what_to_give(
    capsys: pytest.CaptureFixture[str], calls: Calls
) -> None:
    calls.after("ropewalk.net.this_machine", "announced_chiefs", lambda _: [])
    with pytest.raises(SystemExit) as caught:
        cli.main(["status"])
    assert caught.value.code == 2
    assert "you have no job with a chief on this machine" in capsys.readouterr().err
