"""The rooms are one import package: links, light import, who may read or import what."""

import ast
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.processes import ROOT
from helpers.sources import ROOMS, sources, tree
from ropewalk.core.exit_codes import ExitCode


def python(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run this interpreter on the source tree; its output. It must succeed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def imported(path: Path) -> Iterator[str]:
    """Absolute names of modules a file imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


# -- links -----------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_a_relative_link_in_the_package(room: str) -> None:
    link = ROOT / "src" / "ropewalk" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{room}"
    assert (link / "__init__.py").is_file()


def test_the_package_has_no_other_folders() -> None:
    entries = {path.name for path in (ROOT / "src" / "ropewalk").iterdir() if path.is_dir()}
    assert entries - {"__pycache__"} == set(ROOMS)


@pytest.mark.needs("git")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist has no index")
def test_git_keeps_the_links_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", "src/ropewalk"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    modes = {line.split("\t")[1]: line.split()[0] for line in listed.splitlines()}
    for room in ROOMS:
        assert modes[f"src/ropewalk/{room}"] == "120000"


# -- threads ---------------------------------------------------------------------------------


def test_no_thread_ends_unheard() -> None:
    """Threads are made by ``core/process/threads.py``, which asks whom their end concerns."""
    # The threads of net end with their connections, which both sides notice.
    makers = [path for path in sources("Thread") if path.parts[len(ROOT.parts)] != "net"]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in makers
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread")
        or (isinstance(node, ast.ClassDef) and "threading.Thread" in map(ast.unparse, node.bases))
    ]
    assert [each.partition(":")[0] for each in found] == ["core/process/threads.py"], found


# -- terminals -----------------------------------------------------------------------------


# Whoever writes to a terminal, by what; each makes texts safe with core/terminal.py.
_WRITERS = {
    "click.echo": {"launch/screen/plain.py"},
    "Console": {"launch/screen/display.py"},
    "print": {"annexes/service/connecting.py", "worker/process/program.py"},
    "sys.stderr.write": {"worker/process/program.py", "core/process/tracebacks.py"},
    "sys.stdout.write": set(),
}


def test_nothing_is_written_to_a_terminal_around_what_makes_it_safe() -> None:
    found: dict[str, set[str]] = {name: set() for name in _WRITERS}
    for path in sources("echo", "Console", "print", "write"):
        for node in ast.walk(tree(path)):
            names = [ast.unparse(node.func)] if isinstance(node, ast.Call) else []
            if isinstance(node, ast.ImportFrom) and node.module == "rich.console":
                names = [alias.name for alias in node.names]
            for name in found.keys() & names:
                found[name].add(str(path.relative_to(ROOT)))
    assert found == _WRITERS


# -- import ----------------------------------------------------------------------------------


def test_import_is_light() -> None:
    heavy = ("jax", "torch", "keras", "tensorflow", "cupy", "kubernetes", "grpc", "numpy", "numba")
    code = (
        "import sys, ropewalk\n"
        f"print(len(sys.modules), *[name for name in {heavy} if name in sys.modules])"
    )
    number, *loaded = python("-c", code).split()
    assert loaded == []
    assert int(number) <= 130  # 97 with CPython 3.11, with those of the interpreter itself


# What a process loads before it is at work: everything else is paid by every task of every cluster.
_LOADED = {
    "a launcher": (
        "launch.cli",
        "launch.commands.local",
        "launch.local.run",
        "launch.screen.plain",
    ),
    "a worker": (
        "launch.cli",
        "launch.commands.roles",
        "worker.daemon",
        "worker.job_task",
        "worker.data_plane.servers",
        "api.distribute",
        "distribute.optimizers",
    ),
    "a ps": ("launch.cli", "launch.commands.roles", "worker.daemon", "server.ps.server"),
}
# How many modules of the project that is, and of all: most of the time of a start.
_MOST = {"a launcher": (83, 400), "a worker": (330, 860), "a ps": (218, 660)}
_NOT_LOADED = {
    "a launcher": ("numba", "numpy", "grpc", "google", "rich", "fsspec", "optree",
                   "pydantic_settings"),
    "a worker": ("numba", "llvmlite", "rich", "ropewalk.server", "prometheus_client",
                 "pydantic_settings", "fsspec", "http.server"),
    "a ps": (
        "numba", "llvmlite", "rich", "optree", "tenacity", "safetensors", "pydantic_settings",
        "prometheus_client", "grpc", "fsspec", "asyncio", "http.server",
        "ropewalk.api", "ropewalk.client", "ropewalk.distribute", "ropewalk.training",
        "ropewalk.worker.job_task", "ropewalk.core.rules.built_in",
    ),
}  # fmt: skip


@pytest.mark.parametrize("role", _LOADED)
def test_a_process_loads_what_its_role_needs(role: str) -> None:
    modules = ", ".join(f"ropewalk.{name}" for name in _LOADED[role])
    code = f"import sys, {modules}\nprint(*[m for m in {_NOT_LOADED[role]} if m in sys.modules])"
    code += "\nprint(sum(m.startswith('ropewalk.') for m in sys.modules), len(sys.modules))"
    *found, ours, all_modules = python("-c", code).split()
    assert found == []
    most_ours, most = _MOST[role]
    assert int(ours) <= most_ours, f"{role} loads {ours} modules of the project"
    assert int(all_modules) <= most, f"{role} loads {all_modules} modules"


def test_a_launcher_loads_no_framework() -> None:
    code = (
        "import sys, ropewalk.launch.cli, ropewalk.launch.local.run, ropewalk.worker.daemon\n"
        "names = ('jax', 'torch', 'keras', 'tensorflow', 'cupy', 'kubernetes')\n"
        "print(*[name for name in names if name in sys.modules])"
    )
    assert python("-c", code).split() == []


# -- who may what ----------------------------------------------------------------------------


def test_two_modules_alone_read_the_environment() -> None:
    allowed = {ROOT / "core" / "settings.py", ROOT / "cluster" / "resolvers" / "tf_config.py"}
    names = {"environ", "environb", "getenv"}
    readers = set()
    for path in sources(*names):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                used = {node.attr}
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                used = {alias.name for alias in node.names}
            else:
                continue
            if used & names:
                readers.add(path.resolve())
    assert readers == allowed


@pytest.mark.parametrize(
    ("library", "modules"), [("numba", {"jit.py"}), ("llvmlite", {"jit.py", "machine_code.py"})]
)
def test_one_module_imports_the_compiler_and_one_the_loader(
    library: str, modules: set[str]
) -> None:
    importers = {
        path.resolve()
        for path in sources(library)
        if library in {name.split(".")[0] for name in imported(path)}
    }
    assert importers == {ROOT / "engine" / name for name in modules}


@pytest.mark.parametrize(
    ("library", "modules"),
    [
        ("kubernetes", {"annexes/kubernetes/requests.py"}),
        ("googleapiclient", {"distribute/compute_engine.py"}),
        ("google.auth", {"distribute/compute_engine.py"}),
    ],
)
def test_one_module_of_a_room_imports_the_client_of_a_service(
    library: str, modules: set[str]
) -> None:
    importers = {
        path.resolve()
        for path in sources(*library.split("."))
        if any(name == library or name.startswith(f"{library}.") for name in imported(path))
    }
    assert importers == {ROOT / module for module in modules}


def test_nothing_is_unpickled_but_what_a_coordinator_sends_its_workers() -> None:
    forbidden = ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")
    for path in sources(*forbidden, "allow_pickle"):
        if path.parts[-2:] == ("coordinator", "shipping.py"):
            continue
        for name in imported(path):
            assert name.split(".")[0] not in forbidden, f"{path} imports {name}"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def test_rooms_import_each_other_relatively() -> None:
    # By its real path a type checker would otherwise see a second copy of a class.
    for path in sources():
        for name in imported(path):
            assert name.split(".")[0] not in ("ropewalk", *ROOMS), f"{path} imports {name}"


@pytest.mark.skipif(
    importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed"
)
def test_import_contracts_hold() -> None:
    said = python("-c", "from importlinter.cli import lint_imports_command as run; run()")
    assert "0 broken" in said


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed"
)
def test_generated_code_is_fresh() -> None:
    assert "fresh" in python("tools/gen_protos.py", "--check")


# -- what others receive ---------------------------------------------------------------------


def _builds_wheels() -> bool:
    try:
        major = int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return major >= 77 and importlib.util.find_spec("pip") is not None


@pytest.mark.skipif(
    not _builds_wheels(), reason="needs pip and setuptools >= 77 beside the tests (no network)"
)
def test_the_wheel_holds_ropewalk_and_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (*ROOMS, "src"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )  # fmt: skip
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    python(
        "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--disable-pip-version-check", "--wheel-dir", str(tmp_path), ".", cwd=copy,
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ropewalk"}
    assert len(tops) == 2
    for path in sources():
        inside = path.relative_to(ROOT / "src" if "src" in path.relative_to(ROOT).parts else ROOT)
        wanted = str(inside) if inside.parts[0] == "ropewalk" else f"ropewalk/{inside}"
        assert wanted in names
    for proto in (ROOT / "proto" / "v1").iterdir():
        if proto.suffix in (".proto", ".py", ".pyi"):
            assert f"ropewalk/proto/v1/{proto.name}" in names
    assert "ropewalk/py.typed" in names
    assert [name for name in names if name.endswith(".md")] == []  # for those with a checkout


def test_exit_codes_are_documented() -> None:
    page = ROOT / "docs" / "exit-codes.md"
    if not page.exists():
        pytest.skip("docs/exit-codes.md is not written yet")
    lines = page.read_text().splitlines()
    for code in ExitCode:
        assert any(
            str(code.value) in line and code.name in line and code.meaning in line for line in lines
        ), f"no line of {page} has {code.value}, {code.name} and {code.meaning!r}"


def test_the_command_is_found_without_its_folder_on_path() -> None:
    assert python("-m", "ropewalk", "--version").startswith("ropewalk")


def test_every_test_of_the_bridges_is_marked() -> None:
    """``make test`` does not look into their files."""
    files = list((ROOT / "tests").rglob("test_bridges_*.py"))
    assert files
    for file in files:
        body = tree(file).body
        marks = [ast.unparse(node) for node in body if isinstance(node, ast.Assign)]
        assert any("pytestmark" in mark and "pytest.mark.bridges" in mark for mark in marks), file
