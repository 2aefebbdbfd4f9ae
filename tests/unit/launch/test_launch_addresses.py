"""Where a person names a job or a cluster by its address: a slip is refused at once."""

import pytest
from click.testing import CliRunner

import ropewalk as rw
from helpers.commands import command_case
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.launch import cli
from ropewalk.launch.commands.doctor import examine

SLIPS = {
    "grpc://chief:2222": "write 'chief:2222'",
    " chief:2222": "write 'chief:2222'",
    "::1:2222": "write '[::1]:2222'",
    "chief:port": "a colon, and a port from 1 to 65535",
    "chief:22222222": "a colon, and a port from 1 to 65535",
}
COMMANDS = {
    "status": ["status", "{}"],
    "status of a cluster": ["status", "job", "--cluster", "{}"],
    "scale": ["scale", "{}", "--ps", "2"],
    "scale of a cluster": ["scale", "job", "--ps", "2", "--cluster", "{}"],
    "move": ["move", "{}", "0", "--to", "ps-1"],
    "jobs": ["jobs", "--cluster", "{}"],
    "stop": ["stop", "job", "--cluster", "{}"],
    "logs": ["logs", "job", "--cluster", "{}"],
    "submit": ["submit", "--cluster", "{}", "train.py"],
    "chief": ["run", "--role", "worker", "--index", "0", "--cluster", '{{"worker": ["w:1"]}}',
              "--chief", "{}", "train.py"],
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS, ids=ascii)
@pytest.mark.parametrize(
    "command", [command_case(words, words, name=name) for name, words in COMMANDS.items()]
)
def test_a_command_says_what_to_write(
    command: list[str], slip: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("train.py", "w") as program:
        program.write("")
    arguments = [each.format(slip) for each in command]
    error = CliRunner().invoke(cli.ropewalk, arguments, standalone_mode=False).exception
    assert isinstance(error, ConfigurationError), error
    assert SLIPS[slip] in error.message


@pytest.mark.parametrize("slip", SLIPS, ids=ascii)
def test_doctor_says_it_at_its_first_step(slip: str) -> None:
    first, *others = examine(slip, Settings(), timeout_s=0.1)
    assert not first.passed
    assert SLIPS[slip] in first.said
    assert {step.passed for step in others} == {None}


@pytest.mark.parametrize("slip", SLIPS, ids=ascii)
@pytest.mark.annex("service")
def test_a_program_that_connects_is_told(slip: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rw.connect(slip)
    assert SLIPS[slip] in caught.value.message


@pytest.mark.parametrize("slip", SLIPS, ids=ascii)
@pytest.mark.annex("embedding")
def test_a_reader_of_tables_is_told(slip: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rw.embedding.Reader(slip, [])
    assert SLIPS[slip] in caught.value.message
