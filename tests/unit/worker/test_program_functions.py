"""A program that is a function of a module: ``package.module:function``."""

import sys
from pathlib import Path

import pytest

from ropewalk.core.errors import ConfigurationError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import Outcome
from ropewalk.worker.process.program import find_program, run_program


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_interpreter: None) -> Path:
    (tmp_path / "jobs_of_a_test.py").write_text(
        "import sys\n\n\ndef main():\n    print('called with', sys.argv[1:])\n    sys.exit(4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "jobs_of_a_test", raising=False)
    return tmp_path


def test_the_function_is_called_with_the_arguments_in_argv(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = find_program("jobs_of_a_test:main")
    assert program.path == project / "jobs_of_a_test.py"
    assert program.command == ["jobs_of_a_test:main"]
    ending = run_program(program, ["--epochs", "3"])
    assert (ending.outcome, ending.code) == (Outcome.FAILED, 4)
    assert capsys.readouterr().out == "called with ['--epochs', '3']\n"


@pytest.mark.usefixtures("project")
def test_a_function_that_is_not_there_is_named() -> None:
    said: list[str] = []
    ending = run_program(find_program("jobs_of_a_test:other"), [], said.append)
    assert ending.code == ExitCode.USAGE
    assert "jobs_of_a_test has no function 'other'" in ending.message
    with pytest.raises(ConfigurationError, match="no module 'not_there'"):
        find_program("not_there:main")
