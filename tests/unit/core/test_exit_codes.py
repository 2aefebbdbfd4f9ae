"""Exit codes: a contract with whoever restarts processes."""

import pytest

from ropewalk.core.exit_codes import ExitCode, describe_exit, is_retryable, shell_status


def test_the_numbers_are_frozen() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "PROGRAM_FAILED": 1,
        "USAGE": 2,
        "ADDRESS_IN_USE": 3,
        "CHECKPOINT_UNUSABLE": 4,
        "INCOMPATIBLE": 5,
        "REFUSED": 6,
        "STORAGE": 7,
        "ACCESS": 8,
        "NOT_FOUND": 9,
        "JOB_FAILED": 10,
        "KILLED": 137,
        "PEER_LOST": 138,
        "JOIN_TIMEOUT": 140,
        "DRAINED": 143,
        "LEFT_EARLY": 144,
    }


@pytest.mark.parametrize("code", list(ExitCode), ids=lambda code: code.name)
def test_every_code_has_a_meaning(code: ExitCode) -> None:
    assert code.meaning
    assert describe_exit(code) == code.meaning


@pytest.mark.parametrize(
    ("code", "retryable"),
    [
        pytest.param(0, False, id="done"),
        pytest.param(1, False, id="first permanent"),
        pytest.param(127, False, id="last permanent"),
        pytest.param(128, True, id="first retryable"),
        pytest.param(255, True, id="last"),
        pytest.param(-9, True, id="SIGKILL as subprocess tells it"),
    ],
)
def test_128_and_above_and_signals_are_worth_a_restart(code: int, retryable: bool) -> None:
    assert is_retryable(code) is retryable


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(-15, "killed by SIGTERM", id="known signal"),
        pytest.param(-250, "killed by signal 250", id="unknown signal"),
        pytest.param(77, "exited by itself with a code that is not Ropewalk's", id="foreign code"),
    ],
)
def test_an_exit_is_described_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


@pytest.mark.parametrize(("code", "shell"), [(0, 0), (2, 2), (-9, 137), (-15, 143)])
def test_a_shell_shows_signal_n_as_128_plus_n(code: int, shell: int) -> None:
    assert shell_status(code) == shell
