"""What TLS costs a session: pushes and small steps through TLS, beside plain TCP in the same run.

    python -m benchmarks.tls        # ten seconds

Two ps, one with certificates and one without; this worker steps with them by turns. The bars: 64 MB
in at most 2.7 times the time, a small step at most 0.03 ms later.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, Case
from benchmarks.running import connected, parameter_server
from benchmarks.step import define, gradients_of
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload
from windlass.cluster.principal import Principal
from windlass.core.settings import Settings
from windlass.launch.certificate_authority import issue, make_authority, write_pair

WARM_UP = 5
PUSH = Case("64 MB pushed", "1 × (4096, 4096), SGD", 1, (4096, 4096), "sgd")


def certificates(folder: Path, *roles: str) -> list[Settings]:
    """Settings of a task of each role, with certificates of one CA."""
    authority = make_authority(1)
    (folder / "ca.pem").write_bytes(authority.pem)
    found = []
    for role in roles:
        made = issue(authority, Principal(role), ["127.0.0.1"], 1)
        certificate, key = folder / f"{role}.pem", folder / f"{role}.key"
        write_pair(certificate, made.certificate, key, made.key)
        found.append(
            Settings(
                tls_cert=str(certificate),
                tls_key=str(key),
                tls_ca=str(folder / "ca.pem"),
                shared_memory=False,
            )
        )
    return found


def steps(session: ParameterSession, case: Case, *, pull: bool) -> Callable[[], object]:
    """A step of a case."""
    names = define(session, case)
    gradients = gradients_of(case, names)
    wanted = names if pull else []
    return lambda: session.step(PushPayload(gradients), wanted, step_increment=1)


def measure(budget_s: float) -> list[dict[str, Any]]:
    """Each case over TCP and over TLS, by turns. Unit: milliseconds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ps, worker = certificates(Path(folder), "ps", "worker")
        for case, pull in ((PUSH, False), (CASES[2], True), (CASES[0], True)):
            with (
                parameter_server() as plain,
                parameter_server(settings=ps) as secured,
                connected([plain], "tcp") as one,
                connected([secured], "tls", settings=worker) as other,
            ):
                kinds = [steps(session, case, pull=pull) for session in (one, other)]
                times: tuple[list[float], list[float]] = ([], [])
                until = time.perf_counter() + budget_s
                while len(times[0]) < 2 * WARM_UP or time.perf_counter() < until:
                    for step, found in zip(kinds, times, strict=True):
                        began = time.perf_counter()
                        step()
                        found.append((time.perf_counter() - began) * 1000)
            tcp, tls = (statistics.median(each[WARM_UP:]) for each in times)
            least = [min(each[WARM_UP:]) for each in times]
            rows.append(
                {
                    "case": case.id,
                    "tcp_ms": tcp,
                    "tls_ms": tls,
                    "ratio": tls / tcp,
                    "ratio_of_minima": least[1] / least[0],
                    "later_ms": tls - tcp,
                    "steps": len(times[0]),
                }
            )
    return rows


def main() -> None:
    """Measure, print the table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--budget-s", type=float, default=4.0, help="for each case")
    arguments = parser.parse_args()
    rows = measure(arguments.budget_s)
    table = Table(title="a session through TLS, ms", title_justify="left")
    for title in ("case", "TCP", "TLS", "ratio", "of minima", "later by", "steps"):
        table.add_column(title, justify="left" if title == "case" else "right")
    for row in rows:
        figures = ("tcp_ms", "tls_ms", "ratio", "ratio_of_minima", "later_ms")
        table.add_row(row["case"], *(f"{row[name]:.3f}" for name in figures), str(row["steps"]))
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
