"""Answers of a task: plain data, bounded, without secrets."""

import json
import logging
from pathlib import Path

import pytest

from ropewalk.annexes.diagnosis import answers
from ropewalk.annexes.diagnosis.answers import answer_to, public_settings, without_secrets
from ropewalk.annexes.diagnosis.questions import KINDS
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.process import events
from ropewalk.core.settings import Settings

SECRETS = Settings(
    token_file="/run/secrets/token",  # noqa: S106 - what must not be shown
    tls_key="/run/secrets/key.pem",
    key_file="/home/me/key",
    model_dir="s3://me:pass-word@bucket/run",
    lease_s=20,
)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "log-level"])
def test_each_kind_is_answered_with_plain_data_and_who_answers(kind: str) -> None:
    answer = json.loads(answer_to(kind, "", Settings()))
    assert {"pid", "host"} <= set(answer)


def test_no_answer_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    text = b"".join(answer_to(kind, "", SECRETS) for kind in KINDS if kind != "log-level").decode()
    for secret in ("/run/secrets", "/home/me/key", "pass-word", "from-the-environment"):
        assert secret not in text


def test_settings_are_those_that_are_not_the_defaults() -> None:
    assert public_settings(SECRETS) == {
        "token_file": "(set)",
        "tls_key": "(set)",
        "key_file": "(set)",
        "model_dir": "s3://…@bucket/run",
        "lease_s": 20.0,
    }


def test_an_answer_fits_the_messages_of_its_task() -> None:
    for _ in range(events.MOST):
        events.record("ps.broken", error='"' * 300)
    try:
        settings = Settings(max_message_bytes=64 * 1024)
        assert len(answer_to("events", "", settings)) <= 32 * 1024
    finally:
        events._ring.clear()


def test_what_is_not_known_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be asked for 'environment'"):
        answer_to("environment", "", Settings())


def test_a_log_level_is_taken_at_once(restored_logger: logging.Logger) -> None:
    restored_logger.setLevel("INFO")
    assert json.loads(answer_to("log-level", "DEBUG", Settings()))["before"] == "INFO"
    assert restored_logger.level == logging.DEBUG
    with pytest.raises(ConfigurationError, match="is no log level"):
        answer_to("log-level", "LOUD", Settings())
    assert restored_logger.level == logging.DEBUG


@pytest.mark.parametrize(
    "text",
    [
        "s3://me:SECRET@bucket/run",
        "GET https://h/x?token=SECRET&page=2",
        "https://b/x?X-Amz-Signature=SECRET",
        'client = Client(api_key="SECRET")',
        "Authorization: Bearer SECRET",
        '{"error": "login failed: password=SECRET"}',
        json.dumps(json.dumps({"hf_token": "SECRET", "step": 7})),
        "AWS_SECRET_ACCESS_KEY=SECRET",
        "train.py --wandb-api-key=SECRET --steps 9",
        "train.py --api-token SECRET --steps 9",
        "-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_left_out_of_any_text(text: str) -> None:
    left = without_secrets(text)
    assert "SECRET" not in left.replace("AWS_SECRET_ACCESS_KEY", "")
    assert "…" in left


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "step.slow", "tokens": 1024, "token": 7}',
        "train.py:12 (tokenize): tokens = tokenizer(text)",
        '{"token_file": "(set)", "tls_key": "(set)"}',
        "no checkpoint could be saved: no space left",
        "the token has expired; give it another one with --token-file",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize("cpu", ["cpu.stat", "cpu/cpu.stat"], ids=["version 2", "version 1"])
def test_what_the_cgroup_counts_is_read_as_far_as_it_is_there(cpu: str, tmp_path: Path) -> None:
    assert answers._cgroup(tmp_path) == {}
    for name, text in {
        cpu: "usage_usec 7\nnr_periods 100\nnr_throttled 40\n",
        "pids/pids.current": "12\n",
        "pids/pids.max": "max\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    counts = {"nr_periods": 100, "nr_throttled": 40, "pids.current": 12}
    assert answers._cgroup(tmp_path) == counts
