"""Access: who calls, who leads, and what each may ask. Pure."""

import re
from dataclasses import dataclass

from ..core.errors import ConfigurationError, OtherJobError, PermissionDeniedError
from ..core.task import TaskId, is_other_job
from .spec import CHIEF, EVALUATOR, PS, WORKER

# -- The identity of a caller: a job, a role, and for tasks an index ---------------------------
# Certificates carry a principal as a URI of their subject alternative name, in the form of SPIFFE:
# ``spiffe://TRUST_DOMAIN/ropewalk/JOB/ROLE/INDEX``. Tokens carry it as the claims ``job``,
# ``role`` and ``index``.

DRIVER = "driver"
READER = "reader"
ROLES = (DRIVER, CHIEF, WORKER, PS, EVALUATOR, READER)
TASK_ROLES = (CHIEF, WORKER, PS, EVALUATOR)

_MAX_INDEX = 2**31 - 1
_JOB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_URI = re.compile(r"spiffe://(?P<domain>[^/]+)/ropewalk/(?P<rest>.+)")


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a caller.

    Attributes:
        role: Role of the caller, from :data:`ROLES`.
        job: Id of the job; empty: any, or not known yet.
        index: Index of the task; None: any task of the role, and for roles without tasks.

    Raises:
        ConfigurationError: The role does not exist, or the job or index is not valid.
    """

    role: str
    job: str = ""
    index: int | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigurationError(
                f"no role is called {self.role[:40]!r}; roles are {', '.join(ROLES)}"
            )
        if self.job and not _JOB.fullmatch(self.job):
            raise ConfigurationError(
                f"a job cannot be called {self.job[:70]!r}: up to 64 letters, digits, '-', '_' and "
                "'.', a letter or digit first and last"
            )
        if self.index is not None:
            if self.role not in TASK_ROLES:
                raise ConfigurationError(f"a {self.role} has no index, so not {self.index}")
            if not 0 <= self.index <= _MAX_INDEX:
                raise ConfigurationError(f"the index of a task is 0 to {_MAX_INDEX}")

    def __str__(self) -> str:
        task = self.role if self.index is None else f"{self.role}:{self.index}"
        return f"{task} of job {self.job}" if self.job else task

    @property
    def path(self) -> str:
        """``JOB/ROLE/INDEX``, with ``*`` for any job, and without an index if it has none."""
        parts = [self.job or "*", self.role]
        return "/".join(parts if self.index is None else [*parts, str(self.index)])

    def uri(self, trust_domain: str = "ropewalk") -> str:
        """Write the principal as certificates carry it."""
        return f"spiffe://{trust_domain}/ropewalk/{self.path}"

    def may_be(self, task: TaskId) -> bool:
        """Return whether a caller with this identity may speak as ``task``."""
        return self.role == task.type and self.index in (None, task.index)


def principal_of_task(task: TaskId, job: str = "") -> Principal:
    """Make a principal of a task; that of a role that is no task has no index."""
    return Principal(task.type, job, task.index if task.type in TASK_ROLES else None)


def principal_of_path(path: str) -> Principal:
    """Parse :attr:`Principal.path`.

    Raises:
        ConfigurationError: It is not in that form.
    """
    job, _, rest = path.partition("/")
    role, _, index = rest.partition("/")
    if not job or not role or (index and not index.isdecimal()) or path.endswith("/"):
        raise ConfigurationError(f"{path[:200]!r} is not JOB/ROLE or JOB/ROLE/INDEX")
    return Principal(role, "" if job == "*" else job, int(index) if index else None)


def principal_of_uri(uri: str) -> Principal:
    """Parse :meth:`Principal.uri`.

    Raises:
        ConfigurationError: It is not in that form.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise ConfigurationError(
            f"{uri[:200]!r} is not spiffe://TRUST_DOMAIN/ropewalk/JOB/ROLE/INDEX"
        )
    return principal_of_path(match["rest"])


# -- Leadership of a job, as its servers see it: the chief, or worker 0 of a cluster without one --
# A ps whose TF_CONFIG names only itself does not know whether there is a chief until one attaches.
# So a chief that attaches wins over worker 0, also while worker 0 leads, and from then on that
# chief alone leads: also when it is silent, or restarts as a new generation of the same task.
# Pure.


@dataclass(frozen=True, slots=True)
class Leadership:
    """Knowledge of a server about the leader of its job.

    Attributes:
        has_chief: The cluster is known to have a task of the type chief.
        leader: The task that led last; None: none yet.
    """

    has_chief: bool = False
    leader: TaskId | None = None

    def allows(self, who: Principal) -> bool:
        """Return whether a caller may lead."""
        if self.leader is not None and self.leader.type == CHIEF:
            return who.may_be(self.leader)
        if who.role == CHIEF:
            return True
        return who.role == WORKER and who.index == 0 and not self.has_chief


def may_follow(leader: TaskId, newcomer: TaskId, *, is_heard: bool) -> bool:
    """Return whether another task may lead after ``leader``, in the same job.

    Args:
        leader: Leads now, or did last.
        newcomer: Task that asks to lead.
        is_heard: The leader's lease has not run out.
    """
    if leader.type == CHIEF:
        return False
    return newcomer.type == CHIEF or not is_heard


# -- Rights: one table of every call and every operation of a session --------------------------
# ``docs/security.md`` shows it, and :mod:`ropewalk.net.auth.guard` enforces it. Pure.


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
    f"/{_PS}/Ask": _LEAD,
    f"/{_CHIEF}/Register": Rule(_JOIN, audited=True),
    f"/{_CHIEF}/Heartbeat": Rule(_JOIN, renews=True),
    f"/{_CHIEF}/Finish": Rule(_JOIN, audited=True),
    f"/{_CHIEF}/Arrive": Rule(_TRAIN),
    f"/{_CHIEF}/StopJob": _AUDITED_DRIVE,
    f"/{_CHIEF}/MoveShare": _AUDITED_DRIVE,
    f"/{_CHIEF}/JoinPs": Rule(frozenset({PS}), audited=True),
    f"/{_CHIEF}/ScalePs": _AUDITED_DRIVE,
    f"/{_CHIEF}/GetStatus": Rule(_ALL),
    f"/{_CHIEF}/GetHistory": Rule(_ALL),
    f"/{_CHIEF}/WatchLeaders": Rule(_READ),
    f"/{_CHIEF}/JoinCut": _WRITE,
    f"/{_CHIEF}/TakeCut": Rule(_TRAIN | {READER}),
    f"/{_CHIEF}/ReleaseCut": Rule(_TRAIN | {READER}),
    f"/{_CHIEF}/AskTasks": _AUDITED_DRIVE,
    f"/{_CHIEF}/GetAnswers": _DRIVE,
    f"/{_CHIEF}/AnswerQuestion": Rule(_JOIN),
    f"/{_CHIEF}/LeaseRange": _WRITE,
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
    "step ADVANCE": _WRITE,
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
