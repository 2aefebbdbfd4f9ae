"""A process that the tests fork is what ``python`` would have been: arguments, streams,
exit code.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import fork_server
from helpers.fork_server import ADDRESS, FAMILY, OF_RUN, ROOT, SERVER, Forked, ForkServer
from helpers.waiting import scaled, wait_until

SHOWS = """
import os, sys
print(sys.argv[1:], os.environ["GIVEN"], os.getcwd(), __name__)
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", [subprocess.Popen, Forked], ids=["executed", "forked"])
def test_arguments_environment_directory_streams_and_exit_code_arrive(
    kind: type[subprocess.Popen[Any]], tmp_path: Path
) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOWS)
    with kind(
        [sys.executable, script, "7", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "GIVEN": "é"},
        text=True,
    ) as process:
        output, errors = process.communicate(timeout=scaled(20))
    assert (process.returncode, errors) == (7, "an error\n")
    assert output == f"['7', 'x'] é {tmp_path} __main__\n"


def test_descriptors_that_are_passed_keep_their_numbers_and_others_are_closed() -> None:
    ours, theirs = os.pipe()
    code = f"import os; os.write({theirs}, b'heard'); print(len(os.listdir('/proc/self/fd')))"
    try:
        with Forked(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[theirs]
        ) as process:
            output, _ = process.communicate(timeout=scaled(20))
        assert os.read(ours, 10) == b"heard"
        assert int(output) == 3 + 1 + 1  # streams, the pipe, the listing
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_fork_that_is_killed_says_so_and_one_that_runs_on_is_waited_for_in_vain() -> None:
    with Forked([sys.executable, "-c", "import threading; threading.Event().wait()"]) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.kill()
        assert process.wait(scaled(20)) == -9


def test_a_fork_runs_the_sitecustomize_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('first')\n")
    with Forked(
        [sys.executable, "-c", "print('then')"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
    ) as process:
        assert process.communicate(timeout=scaled(20))[0].split() == ["first", "then"]


ON_A_HOST = """
import socket, sys
sys.path.insert(0, {tests!r})
from helpers.fork_server import Forked
print(socket.gethostname(), open("/etc/hosts").read().strip(), flush=True)
if len(sys.argv) == 1:
    with Forked([sys.executable, __file__, "again"]) as child:
        sys.exit(child.wait())
"""


@pytest.mark.needs("mounts and host names of its own")
def test_a_fork_and_those_that_it_starts_may_be_on_a_host_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 there\n")
    script = tmp_path / "shows.py"
    script.write_text(ON_A_HOST.format(tests=str(ROOT / "tests")))
    host = "elsewhere", str(tmp_path / "hosts")
    before = os.uname().nodename, Path("/etc/hosts").read_text()
    with Forked([sys.executable, script], host=host, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=scaled(20))
    assert output.splitlines() == ["elsewhere 127.0.0.1 there"] * 2
    assert (os.uname().nodename, Path("/etc/hosts").read_text()) == before


def test_forks_share_nothing_that_was_drawn_at_random() -> None:
    code = "import ropewalk.annexes.ring.group as g, random; print(g._GENERATION, random.random())"
    said = []
    for _ in range(2):
        with Forked([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            said.append(process.communicate(timeout=scaled(20))[0].split())
    assert said[0][1] != said[1][1]
    assert said[0][0] != said[1][0]


def test_each_worker_of_a_run_has_a_server_whose_forks_are_of_its_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OF_RUN, SERVER.address())
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(fork_server, "family", lambda: "0000000007")
    server = ForkServer()
    command = [sys.executable, "-c", "print(open('/proc/self/environ').read())"]
    with Forked(command, address=server.address(), stdout=subprocess.PIPE, text=True) as process:
        shown = process.communicate(timeout=scaled(20))[0]
    assert f"{FAMILY}=0000000007" in shown.split("\0")
    assert server.pid is not None
    its_own = Path(f"/proc/{server.pid}")
    assert its_own.exists()
    server.close()
    wait_until(lambda: not its_own.exists(), 20, "the end of the server")


def test_a_fork_ends_with_the_tests_also_where_these_are_killed() -> None:
    code = (
        "import os, sys; from helpers.fork_server import Forked\n"
        "fork = Forked([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        "print(fork.pid, flush=True); os._exit(1)"
    )
    environment = {name: v for name, v in os.environ.items() if name != ADDRESS}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        timeout=scaled(60),
        check=False,
    )
    shown = Path(f"/proc/{int(done.stdout)}")
    wait_until(lambda: not shown.exists(), 20)
