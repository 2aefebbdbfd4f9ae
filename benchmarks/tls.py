"""What TLS costs a session: pushes and small steps through TLS, beside plain TCP in the same run.

    python -m benchmarks.tls        # ten seconds

Two ps, one with certificates and one without; this worker steps with them by turns. The bars: 64 MB
in at most 2.7 times the time, a small step at most 0.03 ms later.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.cases import CASES, Case
from benchmarks.pairs import Pair, compare, measure_pair
from benchmarks.running import connected, parameter_server
from benchmarks.step import define, gradients_of
from ropewalk.annexes.certificates.command import issue, make_authority, write_pair
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.core.wire.steps import Operation

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
    return lambda: session.step(Step([Write(Operation.APPLY, gradients)], wanted, increment=1))


def measure(budget_s: float) -> list[Pair]:
    """Each case over TCP and over TLS."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        ps, worker = certificates(Path(folder), "ps", "worker")
        for case, pull in ((PUSH, False), (CASES[2], True), (CASES[0], True)):
            with (
                parameter_server() as plain,
                parameter_server(settings=ps) as secured,
                connected([plain], "tcp") as one,
                connected([secured], "tls", settings=worker) as other,
            ):
                through_tcp, through_tls = (steps(each, case, pull=pull) for each in (one, other))
                pairs.append(measure_pair(case.id, through_tcp, through_tls, budget_s))
    return pairs


if __name__ == "__main__":
    compare(measure, "a session through TLS, ms", "TCP", "TLS", __doc__)
