"""What a follower costs a step: a ps that another one follows, beside one that is alone.

    python -m benchmarks.replicas                  # two minutes
    python -m benchmarks.replicas --cases small 64mb --transports shm

One worker steps with both by turns. Processes: this one, the ps that is alone, the leader, and its
follower, so that two cores have more to do than time for large steps. The sparse case is the one
of ``benchmarks.step``, on one ps.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks import sparse
from benchmarks.cases import CASES, SPARSE
from benchmarks.pairs import Pair, compare, measure_pair
from benchmarks.running import connected, parameter_server, settings_of
from benchmarks.step import define, gradients_of
from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import CopyTo, Lead
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation

TRANSPORTS = ("shm", "tcp")
DENSE = {case.id: case for case in CASES if case.id in ("small", "4mb", "64mb", "64mb-adam")}
IN_A_ROW = {"small": 50, "4mb": 10}
CASE_IDS = (*DENSE, SPARSE.id)
CHIEF = Incarnation(TaskId("chief", 0), 1)
LEADER, FOLLOWER = TaskId("ps", 0), TaskId("ps", 1)
TIMEOUT_S = 10.0


@contextmanager
def followed_server(transport: str) -> Iterator[str]:
    """Two ps, of which one follows the other; yields the leader's address."""
    settings = settings_of(transport).model_copy(update={"ps_replicas": 2})
    with ExitStack() as stack:
        addresses = [stack.enter_context(parameter_server(n, settings)) for n in range(2)]
        controls = [
            PsControl(task, address, Settings(), Principal("chief", index=0))
            for task, address in zip((LEADER, FOLLOWER), addresses, strict=True)
        ]
        for control in controls:
            stack.callback(control.close)
            control.attach(CHIEF, "chief:1", lease_s=3600, timeout_s=TIMEOUT_S)
        leading = controls[0]
        leading.lead_share(CHIEF, Lead(0, 1, LEADER), timeout_s=TIMEOUT_S)
        order = CopyTo(0, 1, LEADER, FOLLOWER)
        leading.copy_share(CHIEF, order, addresses[1], timeout_s=TIMEOUT_S)
        _await_follower(leading)
        leading.lead_share(CHIEF, Lead(0, 2, LEADER, (FOLLOWER,)), timeout_s=TIMEOUT_S)
        yield addresses[0]


def _await_follower(leading: PsControl) -> None:
    seen = 0
    while True:
        seen, report = leading.watch_shares(CHIEF, seen, timeout_s=TIMEOUT_S)
        followers = {each.share: each.followers for each in report.shares}[0]
        if any(each.has_joined for each in followers):
            return


def step_of(session: ParameterSession, case_id: str) -> Callable[[], object]:
    """Pull and push of every variable, or of rows."""
    if case_id == SPARSE.id:
        return sparse_step(session)
    case = DENSE[case_id]
    names = define(session, case)
    gradients = gradients_of(case, names)
    return lambda: session.step(Step([Write(Operation.APPLY, gradients)], names, increment=1))


def sparse_step(session: ParameterSession) -> Callable[[], object]:
    """Lookup of rows, and the push of their gradients; other rows in each step."""
    case = SPARSE
    sparse.define(session, case)
    rng = np.random.default_rng(1)
    gradient = rng.standard_normal((case.ids, case.width), np.float32)

    def step() -> None:
        ids = rng.integers(0, case.rows, case.ids)
        session.rows.lookup(sparse.TABLE, ids)
        sparse.push(session, ids, gradient)

    return step


def measure(cases: Sequence[str], transports: Sequence[str], budget_s: float) -> list[Pair]:
    """Each case alone and followed."""
    pairs = []
    for transport in transports:
        for case in cases:
            with (
                parameter_server(settings=settings_of(transport)) as alone,
                followed_server(transport) as followed,
                connected([alone], transport) as one,
                connected([followed], transport) as other,
            ):
                plain, other_one = (step_of(each, case) for each in (one, other))
                title, in_a_row = f"{case} {transport}", IN_A_ROW.get(case, 1)
                pairs.append(measure_pair(title, plain, other_one, budget_s, in_a_row))
    return pairs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)  # the other parser has the help
    parser.add_argument("--cases", nargs="+", choices=CASE_IDS, default=CASE_IDS)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    chosen, rest = parser.parse_known_args()
    compare(
        lambda budget_s: measure(chosen.cases, chosen.transports, budget_s),
        "a step, ms",
        "alone",
        "followed",
        __doc__,
        rest,
    )
