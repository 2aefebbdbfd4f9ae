"""The identity of a caller: a job, a role, and for tasks an index.

Certificates carry a principal as a URI of their subject alternative name, in the form of SPIFFE:
``spiffe://TRUST_DOMAIN/ropewalk/JOB/ROLE/INDEX``. Tokens carry it as the claims ``job``, ``role``
and ``index``.
"""

import re
from dataclasses import dataclass

from ...core.errors import ConfigurationError
from ...core.task import TaskId
from ..roles import CHIEF, EVALUATOR, PS, WORKER

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
