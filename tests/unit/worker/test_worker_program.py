"""Running the user's program in this process, and what its end means."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.core.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    JobStoppedError,
    LimitExceededError,
    NonFiniteGradientError,
    PeerLostError,
    RopewalkError,
)
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.process.tracebacks import noting_errors, own_errors
from ropewalk.core.task import Outcome
from ropewalk.worker.process.program import Ending, Program, ending_of, find_program, run_program

Run = Callable[..., Ending]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a program's text as ``run_program`` does, and put ``sys`` back afterwards."""
    before = (sys.argv, list(sys.path))

    def run(text: str, *arguments: str) -> Ending:
        path = tmp_path / "program.py"
        path.write_text(text)
        return run_program(Program(path), arguments)

    yield run
    sys.argv, sys.path[:] = before


# -- endings ---------------------------------------------------------------------------------


def test_a_program_that_returns_is_done(run: Run) -> None:
    assert run("x = 1") == Ending(Outcome.DONE, ExitCode.DONE)


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        pytest.param("sys.exit()", Ending(Outcome.DONE, 0), id="none"),
        pytest.param("sys.exit(0)", Ending(Outcome.DONE, 0), id="0"),
        pytest.param("sys.exit(3)", Ending(Outcome.FAILED, 3, "the program exited with 3"), id="3"),
        pytest.param("sys.exit('why')", Ending(Outcome.FAILED, 1, "why"), id="text"),
        pytest.param(
            "sys.exit(256)",
            Ending(Outcome.FAILED, 1, "the program exited with 256"),
            id="256 is not 0",
        ),
        pytest.param("sys.exit(-1)", Ending(Outcome.FAILED, 255, "the program exited with "
                                                                 "-1"), id="-1"),
    ],
)  # fmt: skip
def test_sys_exit_means_what_python_makes_of_it(
    run: Run, text: str, ending: Ending, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"import sys\n{text}") == ending
    assert capsys.readouterr().err == ("why\n" if ending.message == "why" else "")


def test_an_exception_is_a_failure_with_a_traceback_of_the_programs_frames_alone(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = run("def f():\n    raise ValueError('no good')\nf()\n")
    assert ending == Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, "ValueError: no good")
    stderr = capsys.readouterr().err
    lines = [line for line in stderr.splitlines() if line.startswith("  File ")]
    assert [line.rsplit("in ", 1)[1] for line in lines] == ["<module>", "f"]
    assert all("program.py" in line for line in lines)
    assert stderr.startswith("Traceback (most recent call last):\n")
    assert stderr.endswith("\nValueError: no good\n")


def test_the_traceback_goes_down_into_the_library_that_raised(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run("import json\njson.loads('{')\n")
    stderr = capsys.readouterr().err
    assert "json/decoder.py" in stderr
    assert "runpy" not in stderr
    assert "worker/process/program.py" not in stderr


def test_the_causes_of_an_exception_are_shown_too(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        "try:\n    {}['the cause']\nexcept KeyError as error:\n"
        "    raise ValueError('the effect') from error\n"
    )
    stderr = capsys.readouterr().err
    assert "KeyError: 'the cause'" in stderr
    assert "direct cause" in stderr
    assert stderr.endswith("ValueError: the effect\n")
    assert "runpy" not in stderr
    assert "worker/process/program.py" not in stderr


def test_a_syntax_error_shows_the_line_and_none_of_our_frames(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = run("x = (\n")
    assert ending.code == ExitCode.PROGRAM_FAILED
    stderr = capsys.readouterr().err
    assert "program.py" in stderr
    assert "SyntaxError" in stderr
    assert "runpy" not in stderr
    assert "worker/process/program.py" not in stderr


def test_a_program_may_change_its_arguments_and_fail(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = run("import sys\nsys.argv = ['other', '--flag']\nraise ValueError('no good')\n")
    assert ending == Ending(Outcome.FAILED, ExitCode.PROGRAM_FAILED, "ValueError: no good")
    stderr = capsys.readouterr().err
    assert "program.py" in stderr
    assert "runpy" not in stderr


def test_an_error_of_ours_ends_with_its_code_and_without_our_insides(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = run(
        "import ropewalk as rw\n"
        "from ropewalk.worker.process.program import find_program\n"
        "def load():\n    find_program('gone.py')\n"
        "load()\n"
    )
    assert (ending.outcome, ending.code) == (Outcome.FAILED, ExitCode.USAGE)
    assert ending.message.startswith("ConfigurationError: gone.py does not exist")
    stderr = capsys.readouterr().err
    files = [line for line in stderr.splitlines() if line.startswith("  File ")]
    assert len(files) == 2
    assert all("program.py" in line and "worker" not in line for line in files)
    assert "gone.py does not exist" in stderr


STOP = JobStoppedError("the job was stopped")


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        pytest.param(KeyboardInterrupt(), Ending(Outcome.LEFT, 143, "interrupted"), id="Ctrl-C"),
        pytest.param(STOP, Ending(Outcome.LEFT, 143, STOP.message), id="stopped"),
        pytest.param(PeerLostError("ps"), Ending(Outcome.LEFT, 138, "ps"), id="peer lost"),
        pytest.param(
            FencedError("ps restarted"), Ending(Outcome.LEFT, 138, "ps restarted"), id="fenced"
        ),
        pytest.param(
            CheckpointError("cut"), Ending(Outcome.FAILED, 4, "CheckpointError: cut"), id="damaged"
        ),
        pytest.param(
            LimitExceededError("big"),
            Ending(Outcome.FAILED, 6, "LimitExceededError: big"),
            id="refused",
        ),
        pytest.param(
            RopewalkError("odd"), Ending(Outcome.FAILED, 1, "RopewalkError: odd"), id="other"
        ),
    ],
)
def test_what_an_exception_means(error: BaseException, ending: Ending) -> None:
    assert ending_of(error) == ending


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), STOP, PeerLostError("ps"), FencedError("ps restarted")],
    ids=["Ctrl-C", "stopped", "lost", "fenced"],
)
def test_leaving_is_no_failure_and_has_no_traceback(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    ending_of(error)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("first", [STOP, NonFiniteGradientError("NaN")], ids=["stop", "diverged"])
def test_an_error_in_a_frameworks_callback_means_what_it_is(first: RopewalkError) -> None:
    """The framework raises one of its own, with the text of the first."""
    with pytest.raises(type(first)), noting_errors():
        raise first
    ending = ending_of(RuntimeError(f"callback failed: {first.message}"))
    assert ending.code == first.exit_code
    assert ending_of(RuntimeError("something else")).code == 1
    with pytest.raises(type(first)), own_errors():
        raise RuntimeError(f"callback failed: {first.message}")


# -- as python FILE ARGUMENTS would ----------------------------------------------------------


def test_the_program_runs_as_main_with_its_arguments_and_its_folder(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_the_program.py").write_text("WHERE = 'beside'\n")
    ending = run(
        "import sys\nimport beside_the_program\n"
        "assert __name__ == '__main__'\n"
        "print(sys.argv[1:], beside_the_program.WHERE, __file__ == sys.argv[0])\n",
        "--lr",
        "0.1",
    )
    sys.modules.pop("beside_the_program", None)
    assert ending.code == 0
    assert capsys.readouterr().out == "['--lr', '0.1'] beside True\n"


# -- finding it ------------------------------------------------------------------------------


def test_a_script_is_found_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_program("train.py").path == tmp_path / "train.py"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("gone.py", "gone.py does not exist", id="absent"),
        pytest.param(".", "is a folder, not a program", id="folder"),
        pytest.param("", "is a folder, not a program", id="empty"),
    ],
)
def test_a_script_that_is_none_is_a_configuration_error(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        find_program(script)
    assert words in caught.value.message
    assert str(tmp_path) in caught.value.message  # where we looked


# -- modules ---------------------------------------------------------------------------------


@pytest.fixture
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_interpreter: None
) -> Iterator[Path]:
    """A package in the working directory whose import fails: nothing may import it to find it."""
    folder = tmp_path / "a_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    yield folder
    sys.modules.pop("a_package", None)


def test_a_module_is_found_without_importing_its_package(package: Path) -> None:
    found = find_program("a_package.train", module=True)
    assert found == Program(package / "train.py", "a_package.train")
    assert found.command == ["-m", "a_package.train"]
    (package / "__main__.py").touch()
    assert find_program("a_package", module=True).path == package / "__main__.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("a_package.gone", "no module 'a_package.gone'", id="absent"),
        pytest.param("a_package.train.x", "no module", id="below a module"),
        pytest.param("a_package", "package without __main__.py", id="package"),
        pytest.param("gone", "no module 'gone'", id="no such name"),
        pytest.param("", "no module ''", id="empty"),
    ],
)
@pytest.mark.usefixtures("package")
def test_a_module_that_is_none_is_a_configuration_error(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_program(name, module=True)
    assert words in caught.value.message


def test_frames_of_ours_between_those_of_the_program_are_counted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = run(
        "import ropewalk as rw\n"
        "def step():\n    raise ValueError('no good')\n"
        "rw.distribute.OneDeviceStrategy('cpu:0').run(step)\n"
    )
    assert ending == Ending(Outcome.FAILED, 1, "ValueError: no good")
    lines = capsys.readouterr().err.splitlines()
    assert sum("inside ropewalk" in line for line in lines) == 1
    assert not any("distribute/" in line for line in lines)
    assert len(lines) <= 8
