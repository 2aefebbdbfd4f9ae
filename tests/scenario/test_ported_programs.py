"""The programs of examples/ported learn what they promise, in every way a newcomer starts them.

``make test`` starts each program in one way; ``make soak`` in all of them.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import processes
from helpers.clusters import HandStarted, tf_configs
from helpers.waiting import scaled

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]

FOLDER = processes.ROOT / "examples" / "ported"
SERVERS = {"chief": 1, "ps": 2, "worker": 2}
EVALUATED = {"chief": 1, "ps": 2, "worker": 1, "evaluator": 1}
IN_SYNC = {"worker": 5}


@dataclass(frozen=True)
class Program:
    """A program, what it promises to reach, and the five tasks it is started as by hand."""

    metric: str
    bound: float
    tasks: dict[str, int]
    often: str  # the way in which `make test` starts it
    at_most: bool = False
    annexes: tuple[str, ...] = ()  # that it needs


PROGRAMS = {
    "custom_training": Program("accuracy", 0.95, IN_SYNC, "python"),
    "dist_mnist": Program("cross-entropy", 0.25, SERVERS, "tf_config", at_most=True),
    "dlrm": Program("AUC", 0.8, SERVERS, "python"),
    "estimator": Program("accuracy", 0.9, EVALUATED, "python", annexes=("estimator",)),
    "multi_worker_custom_loop": Program("accuracy", 0.95, IN_SYNC, "local", annexes=("ring",)),
    "multi_worker_training": Program("accuracy", 0.93, IN_SYNC, "python", annexes=("ring",)),
    "parameter_server_training": Program("accuracy", 0.95, SERVERS, "local"),
    "resnet": Program("accuracy", 0.9, EVALUATED, "python"),
    "save_and_load": Program("accuracy", 0.95, IN_SYNC, "python"),
    "wide_and_deep": Program("AUC", 0.8, SERVERS, "python"),
}


def check(name: str, output: str) -> None:
    """The last number of the program's metric keeps its promise."""
    program = PROGRAMS[name]
    found = re.findall(rf"\b{program.metric} ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    reached = float(found[-1])
    assert reached <= program.bound if program.at_most else reached >= program.bound, output


def start_with_python(name: str, folder: Path) -> None:
    """``python program.py``."""
    code, output, errors = processes.run(
        [sys.executable, FOLDER / f"{name}.py"], timeout_s=scaled(90), cwd=folder
    )
    assert code == 0, errors
    # It may say that it waits for another test, which compiles into the same cache.
    said = [line for line in errors.splitlines() if "compiles kernels into" not in line]
    assert said == []
    check(name, output)


def start_locally(name: str, folder: Path) -> None:
    """``ropewalk local``: two workers, with a chief and two ps, or in sync."""
    tasks = PROGRAMS[name].tasks
    ps = ["--ps", "2"] if "ps" in tasks else ["--ps", "0", "--no-chief"]
    evaluator = ["--evaluator"] if "evaluator" in tasks else []
    command = ["local", "--plain", "--workers", "2", *ps, *evaluator, "--model-dir", "model"]
    code, output, errors = processes.run(
        [*processes.ROPEWALK, *command, FOLDER / f"{name}.py"], timeout_s=scaled(90), cwd=folder
    )
    assert code == 0, output + errors
    check(name, output)


def start_by_hand(name: str, folder: Path) -> None:
    """Five processes with TF_CONFIG: workers by `python`, the others by `ropewalk`."""
    configs = tf_configs(**PROGRAMS[name].tasks)
    assert len(configs) == 5
    program = str(FOLDER / f"{name}.py")
    commands = {"worker": ["python", program], "ps": ["ropewalk", "ps"]}
    started = [
        HandStarted(
            commands.get(role, ["ropewalk", "run", program]),
            {task: config for task, config in configs.items() if task.startswith(role)},
            folder,
            ROPEWALK_MODEL_DIR="model",
            ROPEWALK_HEARTBEAT_S="0.1",
        )
        for role in PROGRAMS[name].tasks
    ]
    ended = {task: end for tasks in started for task, end in tasks.wait(90).items()}
    failed = [f"{task}: {end.code}\n{end.text}" for task, end in ended.items() if end.code]
    assert not failed, "\n".join(failed)
    first = "chief:0" if "chief:0" in ended else "worker:0"
    for task in {first, "evaluator:0"} & ended.keys():
        check(name, ended[task].text)


WAYS: dict[str, Callable[[str, Path], None]] = {
    "python": start_with_python,
    "local": start_locally,
    "tf_config": start_by_hand,
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(
            name,
            way,
            marks=[
                pytest.mark.annex(*program.annexes),
                *([] if way == program.often else [pytest.mark.soak]),
            ],
        )
        for name, program in PROGRAMS.items()
        for way in WAYS
    ],
)
def test_a_ported_program_reaches_what_it_promises(name: str, way: str, tmp_path: Path) -> None:
    WAYS[way](name, tmp_path)


# -- as short as the originals ---------------------------------------------------------------

_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Lines with code: without blank lines, comments, docstrings and the loading of data."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("load_"):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            left_out.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def test_every_program_of_the_folder_is_known() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")} - {"common"}
    of_bridges = {"parameter_server_fit"}  # tests/bridges/test_bridges_examples.py starts it
    assert names == set(PROGRAMS) | of_bridges


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_ported_program_is_about_as_short_as_its_original(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    said = re.search(r"(\d+)\s+lines", ast.get_docstring(ast.parse(source)) or "")
    assert said is not None, "its docstring says how many lines the original has"
    assert lines_of_code(source) <= 1.3 * int(said[1])
