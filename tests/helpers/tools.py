"""What a test needs of the machine beside Python: programs, privileges, parts of the kernel.

A test says it with ``@pytest.mark.needs("podman")``. Where one is missing the test is skipped, and
the run ends with a list: what is missing, and how many tests each would run. No test looks for a
program by itself, so the list is complete, and ``--needing-more-than=PATH`` runs exactly the tests
that a machine with the programs of that PATH has left out.

A name is that of a program, unless :data:`NEEDS` has an entry for it.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PROPERTY = "missing"  # of a report: what a skipped test would have needed
_KUSTOMIZE = (5, 0)  # has components, replacements and anchors


def assets() -> Path | None:
    """The folder with etcd and kube-apiserver, by ``KUBEBUILDER_ASSETS``; None: there is none."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
    programs = [folder / "etcd", folder / "kube-apiserver"]
    return folder if all(os.access(each, os.X_OK) for each in programs) else None


@cache
def kustomize() -> tuple[str, ...]:
    """What builds a kustomization: ``kubectl kustomize`` or ``kustomize build``; empty: nothing."""
    for command, asks in (
        (("kubectl", "kustomize"), ("kubectl", "version", "--client", "--output=json")),
        (("kustomize", "build"), ("kustomize", "version")),
    ):
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run(asks, capture_output=True, text=True, check=False, timeout=60).stdout
        text = json.loads(said).get("kustomizeVersion", "") if command[0] == "kubectl" else said
        found = re.search(r"v(\d+)\.(\d+)", text)
        if found and (int(found[1]), int(found[2])) >= _KUSTOMIZE:
            return command
    return ()


@dataclass(frozen=True, slots=True)
class Need:
    """What has to be there.

    Attributes:
        programs: All of these, in the PATH.
        any_of: One of these, beside them.
        asks: A command that has to succeed; empty: none.
        holds: Has to be true.
        hint: What to do about it, for the list.
    """

    programs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    holds: Callable[[], object] = lambda: True
    hint: str = ""

    def has_programs(self, path: str | None = None) -> bool:
        """Whether they are in a PATH; None: this process's own."""
        return all(shutil.which(each, path=path) for each in self.programs) and (
            not self.any_of or any(shutil.which(each, path=path) for each in self.any_of)
        )

    def is_met(self) -> bool:
        """Whether all of it is there."""
        return self.has_programs() and bool(self.holds()) and (not self.asks or self._succeeds())

    def _succeeds(self) -> bool:
        asked = subprocess.run(self.asks, capture_output=True, check=False, timeout=60)
        return asked.returncode == 0


def _isolated(*flags: str, script: str, programs: tuple[str, ...] = (), hint: str) -> Need:
    """A shell script has to succeed in namespaces of its own, which end with it."""
    command = ("unshare", *flags, "sh", "-c", script)
    return Need(("unshare", *programs), asks=command, hint=hint)


def py_spy() -> str | None:
    """Where it is: in the PATH, or beside this interpreter."""
    own = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join((os.environ.get("PATH", ""), own)))


@cache
def may_trace() -> bool:
    """Whether a process may trace another one of its user that is not its child."""
    with contextlib.suppress(OSError):
        sleeper = subprocess.Popen(["/bin/sleep", "60"])
        try:
            look = f"open('/proc/{sleeper.pid}/mem', 'rb').close()"
            asked = subprocess.run([sys.executable, "-c", look], capture_output=True, check=False)
            return asked.returncode == 0
        finally:
            sleeper.kill()
            sleeper.wait()
    return False


_AS_ROOT = "run as root, on the machine itself or in a privileged container"
NEEDS = {
    "kubectl or kustomize": Need(any_of=("kubectl", "kustomize"), holds=kustomize,
                                 hint="kustomize >= 5, kubectl >= 1.27"),
    "a Kubernetes cluster": Need(("kubectl",), holds=lambda: "E2E_K8S" in os.environ,
                                 hint="set E2E_K8S=1 where kubectl works"),
    "JobSet's controller": Need(
        ("kubectl",), holds=lambda: "E2E_K8S" in os.environ,
        asks=("kubectl", "get", "crd", "jobsets.jobset.x-k8s.io"),
        hint="a cluster of E2E_K8S=1 with sigs.k8s.io/jobset",
    ),
    "etcd and kube-apiserver": Need(holds=lambda: assets() is not None,
                                    hint="KUBEBUILDER_ASSETS names their folder"),
    "a Slurm cluster": Need(("srun",), holds=lambda: "E2E_SLURM" in os.environ,
                            hint="set E2E_SLURM=1 where srun works"),
    "root": Need(holds=lambda: os.geteuid() == 0, hint="run as root"),
    "mounts and host names of its own": _isolated(
        "--mount", "--uts", "--propagation", "private",
        script="mount --bind /etc/hosts /etc/hosts && hostname test",
        hint=_AS_ROOT,
    ),
    "a right to trace": Need(holds=may_trace, hint="CAP_SYS_PTRACE, or ptrace_scope 0"),
    "py-spy": Need(holds=py_spy, hint="pip install py-spy"),
    "a file system of its own": _isolated(
        "--map-root-user", "--mount", script="mount -t tmpfs -o size=1m none /mnt",
        hint="run as root, or where user namespaces are allowed",
    ),
    "a network namespace": _isolated("--net", script="true", hint=_AS_ROOT),
    "a bridged network": _isolated(
        "--net", "--mount",
        script="mount -t tmpfs none /run && ip netns add test && ip link add bridge type bridge"
        " && ip link add one type veth peer name two && ip rule add pref 1 iif one blackhole",
        programs=("ip", "nsenter", "ss"), hint=_AS_ROOT,
    ),
    "packets lost by iptables": _isolated(
        "--net",
        script="iptables -A INPUT -m statistic --mode random --probability 0.1 -j DROP",
        programs=("iptables",), hint="iptables, and a kernel with xt_statistic",
    ),
    "packets delayed by tc": _isolated(
        "--net", script="tc qdisc add dev lo root netem delay 1ms",
        programs=("tc",), hint="a kernel with sch_netem",
    ),
}  # fmt: skip


def named(name: str) -> Need:
    """The need of a name."""
    return NEEDS.get(name, Need((name,)))


@cache
def is_met(name: str) -> bool:
    """Whether it is there; asked once."""
    return named(name).is_met()


def names_of(item: pytest.Item) -> list[str]:
    """All that a test says it needs."""
    return [str(name) for mark in item.iter_markers("needs") for name in mark.args]


def skip_unless_met(item: pytest.Item) -> None:
    """Skip a test that needs something that is not here, and note what for the list."""
    missing = [name for name in names_of(item) if not is_met(name)]
    item.user_properties.extend((PROPERTY, name) for name in missing)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def needs_more_than(item: pytest.Item, path: str) -> bool:
    """Whether this PATH, or this machine, lacks what a test needs."""
    names = names_of(item)
    return any(not named(name).has_programs(path) or not is_met(name) for name in names)


def missing_lines(properties: Iterable[tuple[str, object]]) -> list[str]:
    """The list at the end of a run, from the properties of its tests' reports."""
    counts = Counter(str(value) for name, value in properties if name == PROPERTY)
    return [
        f"{name}: {count} test{'s' if count > 1 else ''}"
        + (f" ({hint})" if (hint := named(name).hint) else "")
        for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]


def show_missing(terminal: pytest.TerminalReporter) -> None:
    """Write the list, unless nothing is missing."""
    # A module that is skipped as a whole has no test to count.
    skipped = [
        each for each in terminal.getreports("skipped") if isinstance(each, pytest.TestReport)
    ]
    if lines := missing_lines(each for report in skipped for each in report.user_properties):
        terminal.section("missing tools")
        terminal.write_line("\n".join(lines))
