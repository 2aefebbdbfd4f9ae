"""Settings: flags over environment over defaults, and back into a child's environment."""

import os
import subprocess
import sys
from typing import Any, Literal, get_args, get_origin

import pydantic
import pytest

from helpers.rows import row
from ropewalk.core import annexes
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.setting_groups import Concern
from ropewalk.core.settings import (
    DECIDED,
    Settings,
    child_environment,
    launcher_variables,
    load_settings,
    read_environment,
    settings_of,
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ROPEWALK_"):
            monkeypatch.delenv(name)


def _other_value(name: str) -> Any:
    """A valid value that is not the default."""
    info = Settings.model_fields[name]
    default = info.default
    if get_origin(info.annotation) is Literal:
        return next(value for value in get_args(info.annotation) if value != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return f"some {name}, with spaces"
    return default + 1


def test_every_setting_explains_itself() -> None:
    for name in Settings.model_fields:
        with row(name):
            assert (Settings.model_fields[name].description or "").endswith(".")


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_LEASE_S", "30")
    assert load_settings({"lease_s": 20.0}).lease_s == 20.0


def test_a_flag_that_was_not_given_does_not_hide_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROPEWALK_LEASE_S", "30")
    assert load_settings({"lease_s": None}).lease_s == 30.0


def test_a_child_process_reads_back_the_settings_of_its_parent() -> None:
    for name in Settings.model_fields:
        with row(name), pytest.MonkeyPatch.context() as patch:
            settings = load_settings({name: _other_value(name)})
            environment = settings.environment()
            assert list(environment) == [f"ROPEWALK_{name.upper()}"]
            patch.setenv(*environment.popitem())
            assert load_settings() == settings


def test_defaults_are_left_out_of_a_childs_environment() -> None:
    assert load_settings().environment() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("lease_s", 0, id="a lease of no time"),
        pytest.param("chunk_bytes", 12, id="tiny chunk"),
        pytest.param("health_port", 70000, id="no such port"),
        pytest.param("nonfinite_gradients", "ignore", id="no such choice"),
        pytest.param("keep_checkpoints", "many", id="no number"),
    ],
)
def test_a_bad_flag_is_named_with_its_value(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({name: value})
    assert caught.value.message.startswith(f"--{name.replace('_', '-')}={value!r}: ")


def test_a_name_that_is_no_setting_is_refused_and_not_ignored() -> None:
    with pytest.raises(pydantic.ValidationError, match="leese_s"):
        Settings(leese_s=3.0)
    with pytest.raises(ConfigurationError, match=r"^--leese-s=3.0: "):
        load_settings({"leese_s": 3.0})


def test_a_variable_that_is_no_setting_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_LEESE_S", "3")
    assert load_settings() == Settings()


def test_a_bad_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_HEARTBEAT_S", "soon")
    with pytest.raises(ConfigurationError, match=r"^ROPEWALK_HEARTBEAT_S='soon': "):
        load_settings()


def test_all_bad_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_LEASE_S", "-1")
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"health_port": -1})
    assert "ROPEWALK_LEASE_S='-1'" in caught.value.message
    assert "--health-port=-1" in caught.value.message


def test_a_bad_variable_does_not_matter_where_a_flag_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROPEWALK_LEASE_S", "long")
    assert load_settings({"lease_s": 3.0}).lease_s == 3.0


def test_settings_do_not_change() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        load_settings().lease_s = 1.0


def test_a_lost_task_is_noticed_before_its_peers_give_up() -> None:
    defaults = load_settings()
    assert defaults.heartbeat_s < defaults.lease_s < defaults.reconnect_timeout_s


def test_other_variables_are_read_through_one_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    monkeypatch.delenv("VC_TASK_INDEX", raising=False)
    assert read_environment("JOB_COMPLETION_INDEX") == "3"
    assert read_environment("VC_TASK_INDEX") == ""
    assert read_environment("VC_TASK_INDEX", "7") == "7"


def test_a_child_is_told_nothing_of_who_this_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "ROPEWALK_JOB_ID": "desk",
        "ropewalk_log_level": "DEBUG",
        "ROPEWALK_ROLE": "chief",
        "ROPEWALK_STATUS_OBJECT": "desk-status",
        "ROPEWALK_STATUS_JOB": "desk-chief",
        "ROPEWALK_ENDS_JOB": "true",
        "ROPEWALK_CLUSTER": "127.0.0.1:2222",
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    child = child_environment(ROPEWALK_ROLE="ps")
    assert {name: child[name] for name in child if name.upper().startswith("ROPEWALK_")} == {
        "ROPEWALK_ROLE": "ps",
        "ROPEWALK_CLUSTER": "127.0.0.1:2222",  # it names where to send programs, and no one here
    }
    assert launcher_variables() == {
        name: said[name]
        for name in (
            "ROPEWALK_ROLE", "ROPEWALK_STATUS_OBJECT", "ROPEWALK_STATUS_JOB", "ROPEWALK_ENDS_JOB"
        )
    }  # fmt: skip


def test_a_child_gets_our_environment_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("CHANGED", "old")
    child = child_environment(CHANGED="new")
    assert (child["KEPT"], child["CHANGED"]) == ("yes", "new")
    assert os.environ["CHANGED"] == "old"


def test_settings_of_an_annex_stand_behind_the_one_that_they_follow() -> None:
    names = list(Settings.model_fields)
    for module in annexes.at("settings"):
        for group in module.GROUPS:
            own = list(group.fields())
            start = names.index(own[0])
            assert names[start - 1] == group.after
            assert names[start : start + len(own)] == own


def test_settings_of_annexes_go_with_them() -> None:
    code = (
        "from ropewalk.core import annexes\n"
        "annexes.installed = lambda: ()\n"
        "from ropewalk.core.settings import Concern, Settings, settings_of\n"
        "gone = {'supervise', 'rebalance', 'standalone', 'max_jobs', 'tensorboard'}\n"
        "assert not gone & Settings.model_fields.keys(), gone\n"
        "assert settings_of(Concern.STANDALONE) == []\n"
        "assert not Settings().asks_for('rebalance')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_field_that_names_concerns_has_those_instead_of_its_groups() -> None:
    assert "keep_checkpoints" in settings_of(Concern.PROGRAM)
    assert "model_dir" not in settings_of(Concern.PROGRAM)


def test_what_launchers_decide_is_not_a_drivers_to_set() -> None:
    assert not DECIDED.keys() & set(settings_of(Concern.DRIVER))
