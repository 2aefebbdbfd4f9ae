"""Rights: one table of every call and every operation of a session.

``docs/security.md`` shows it, and :mod:`ropewalk.net.auth.guard` enforces it. Pure.
"""

from dataclasses import dataclass

from ...core.errors import OtherJobError, PermissionDeniedError
from ...core.task import TaskId, is_other_job
from ..roles import CHIEF, EVALUATOR, PS, WORKER
from .leadership import Leadership
from .principal import DRIVER, READER, Principal

_TRAIN = frozenset({CHIEF, WORKER})
_JOIN = _TRAIN | {EVALUATOR}
_READ = _JOIN | {READER}
_ALL = frozenset({DRIVER, CHIEF, WORKER, PS, EVALUATOR, READER})


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about who may do one thing.

    Attributes:
        roles: Roles that may do it; empty: anybody, without saying who they are.
        leads: Whether it is for the task that leads the job: the chief, or worker 0 of a cluster
            without.
        audited: Whether it changes or ends a job, so that each use is a line in the log.
        renews: Whether it renews a lease, so that no other call may hold it up.
    """

    roles: frozenset[str]
    leads: bool = False
    audited: bool = False
    renews: bool = False


_PS = "ropewalk.proto.v1.ParameterServer"
_CHIEF = "ropewalk.proto.v1.Chief"
_GATEWAY = "ropewalk.proto.v1.Gateway"
_UNKNOWN = Leadership()
_NOBODY = Rule(frozenset({"nobody"}))
_LEAD = Rule(_TRAIN, leads=True)
_AUDITED_LEAD = Rule(_TRAIN, leads=True, audited=True)
_WRITE = Rule(_TRAIN)
_NODES = frozenset({CHIEF, WORKER, PS})
_DRIVE = Rule(frozenset({DRIVER, CHIEF}))
_AUDITED_DRIVE = Rule(frozenset({DRIVER, CHIEF}), audited=True)

# Every call of every service, and every operation of a session; a test holds that.
RULES: dict[str, Rule] = {
    f"/{_PS}/Define": Rule(_READ),
    f"/{_PS}/Attach": Rule(_TRAIN, leads=True, renews=True),
    f"/{_PS}/GetJob": Rule(_ALL),
    f"/{_PS}/SaveShards": _AUDITED_LEAD,
    f"/{_PS}/VerifyShards": _LEAD,
    f"/{_PS}/EndJob": _AUDITED_LEAD,
    f"/{_PS}/LeadShare": _AUDITED_LEAD,
    f"/{_PS}/CopyShare": _AUDITED_LEAD,
    f"/{_PS}/HandOverShare": _AUDITED_LEAD,
    f"/{_PS}/GiveUpShare": _AUDITED_LEAD,
    f"/{_PS}/WatchShares": _LEAD,
    f"/{_PS}/BeginCut": _AUDITED_LEAD,
    f"/{_PS}/MarkCut": _WRITE,
    f"/{_PS}/FinishCut": _LEAD,
    f"/{_PS}/ReadCut": _WRITE,
    f"/{_PS}/EndCut": _LEAD,
    f"/{_CHIEF}/Register": Rule(_JOIN, audited=True),
    f"/{_CHIEF}/Heartbeat": Rule(_JOIN, renews=True),
    f"/{_CHIEF}/Finish": Rule(_JOIN, audited=True),
    f"/{_CHIEF}/Arrive": Rule(_TRAIN),
    f"/{_CHIEF}/StopJob": _AUDITED_DRIVE,
    f"/{_CHIEF}/MoveShare": _AUDITED_DRIVE,
    f"/{_CHIEF}/JoinPs": Rule(frozenset({PS}), audited=True),
    f"/{_CHIEF}/ScalePs": _AUDITED_DRIVE,
    f"/{_CHIEF}/GetStatus": Rule(_ALL),
    f"/{_CHIEF}/WatchLeaders": Rule(_READ),
    f"/{_CHIEF}/JoinCut": _WRITE,
    f"/{_CHIEF}/TakeCut": Rule(_TRAIN | {READER}),
    f"/{_CHIEF}/ReleaseCut": Rule(_TRAIN | {READER}),
    "/ropewalk.proto.v1.Collective/Probe": Rule(_TRAIN, renews=True),
    f"/{_GATEWAY}/Poll": Rule(_NODES, renews=True),
    f"/{_GATEWAY}/GetPackage": Rule(_NODES),
    f"/{_GATEWAY}/PutPackage": _DRIVE,
    f"/{_GATEWAY}/Submit": _AUDITED_DRIVE,
    f"/{_GATEWAY}/ListJobs": Rule(_ALL),
    f"/{_GATEWAY}/Follow": _DRIVE,
    f"/{_GATEWAY}/Stop": _AUDITED_DRIVE,
    f"/{_GATEWAY}/Scale": _AUDITED_DRIVE,
    f"/{_GATEWAY}/OpenRoute": _AUDITED_DRIVE,
    "/ropewalk.proto.v1.Tunnel/Open": Rule(_READ | {PS}),
    "/grpc.health.v1.Health/Check": Rule(frozenset()),
    "session ps": Rule(_READ),
    "session ring": Rule(_TRAIN),
    "session closures": Rule(frozenset({CHIEF, WORKER}), leads=True, audited=True),
    "session follow": Rule(frozenset({PS})),
    "session who": Rule(_ALL),
    "define CREATE": _WRITE,
    "define BIND": _WRITE,
    "define LOOKUP": Rule(_READ),
    "cut VALUES": _WRITE,
    "cut ROWS": Rule(frozenset({READER})),
    "read FOLLOW": Rule(frozenset({READER})),
    "read KEEP": Rule(frozenset({READER})),
    "step PULL": Rule(_READ),
    "step APPLY": _WRITE,
    "step ASSIGN": _WRITE,
    "step ASSIGN_ADD": _WRITE,
    "step MULTIPLY": _WRITE,
    "step DIVIDE": _WRITE,
    "step MINIMUM": _WRITE,
    "step MAXIMUM": _WRITE,
    "step COUNT": _WRITE,
}


def rule_of(operation: str) -> Rule:
    """Find the rule for an operation; nobody may do what the table does not know."""
    return RULES.get(operation, _NOBODY)


def check_access(
    who: Principal,
    operation: str,
    *,
    server: TaskId,
    job: str = "",
    leadership: Leadership = _UNKNOWN,
    is_proven: bool = True,
) -> None:
    """Check a principal against the table.

    Args:
        who: The caller.
        operation: A key of :data:`RULES`.
        server: The task that is called.
        job: Job of the server; empty: not known yet.
        leadership: Knowledge of the server about which task leads the job.
        is_proven: Whether the job of ``who`` is proven, and not only claimed.

    Raises:
        PermissionDeniedError: The role may not call it, or the proven job is another one.
        OtherJobError: The caller claims to belong to another job.
    """
    rule = rule_of(operation)
    if is_other_job(job, who.job):
        kind = PermissionDeniedError if is_proven else OtherJobError
        raise kind(
            f"{server} belongs to job {job!r} and {who} does not: {_title(operation)} is refused. "
            "Stop one of the jobs, or give this one addresses, and credentials, of its own",
            task=server,
            principal=who,
            operation=operation,
        )
    if rule.roles and who.role not in rule.roles:
        raise PermissionDeniedError(
            f"{server}: {who} may not {_title(operation)}; {_listed(rule)} may",
            task=server,
            principal=who,
            operation=operation,
        )
    if rule.leads and not leadership.allows(who):
        leader = leadership.leader
        led = f"; {leader.short} leads this one" if leader is not None else ""
        raise PermissionDeniedError(
            f"{server}: {who} may not {_title(operation)}: that is for the chief, or for worker 0 "
            f"of a cluster without one{led}",
            task=server,
            principal=who,
            operation=operation,
        )


def check_claim(who: Principal, claimed: TaskId, job: str, *, server: TaskId) -> None:
    """Check that a principal is the task it speaks as.

    Args:
        who: Asks.
        claimed: The task that the request names as its sender.
        job: The job it names; empty: none.
        server: Is asked.

    Raises:
        PermissionDeniedError: It is another one.
    """
    if not who.may_be(claimed) or is_other_job(who.job, job):
        of_job = f" of job {job}" if job else ""
        raise PermissionDeniedError(
            f"{server}: a request of {claimed.short}{of_job} came with the credentials of {who}; "
            "each task needs credentials of its own",
            task=server,
            principal=who,
            claimed=claimed,
        )


def _title(operation: str) -> str:
    return operation.rpartition("/")[2] if operation.startswith("/") else operation


def _listed(rule: Rule) -> str:
    return ", ".join(sorted(rule.roles))
