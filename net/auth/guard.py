"""The guard of a server: the one place that decides who may call, and what they may do."""

import ipaddress
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ...cluster.access import (
    READER,
    TASK_ROLES,
    Leadership,
    Principal,
    check_access,
    check_claim,
    rule_of,
)
from ...core.errors import (
    AccessError,
    ConfigurationError,
    OtherJobError,
    RopewalkError,
    UnauthenticatedError,
)
from ...core.process.log_records import RareLog
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from . import proof, token
from .credentials import SecurityMode, is_localhost, key_of, security_mode, since_boot_s

log = logging.getLogger(__name__)
audit_log = logging.getLogger("ropewalk.audit")

_REFUSALS_S = 1.0  # between log lines about the same thing
_USES = 50  # log lines in a second about what a caller may do
_CALLERS = 1024


def one_caller(caller: Principal | None) -> Principal | None:
    """Return the identity under which a caller is counted; None: callers cannot be told apart.

    Readers are one, and so are drivers whose credentials name the same job. Tasks may show
    credentials that are valid for all tasks of their role, or none at all.
    """
    if caller is None or (caller.role in TASK_ROLES and caller.index is None):
        return None
    return Principal(READER) if caller.role == READER else caller


class Guard:
    """Authenticates and authorizes the callers of one server. Thread-safe.

    Args:
        task: The server.
        settings: Settings that say how tasks authenticate themselves.
        job: Returns the server's job; empty: not known yet.
        leadership: Returns what the server knows about who leads its job.

    Attributes:
        mode: Set by :meth:`begin`.
        refusals: Number of calls and greetings that were refused.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        *,
        job: Callable[[], str] = str,
        leadership: Callable[[], Leadership] = Leadership,
    ) -> None:
        self._task = task
        self._settings = settings
        self._job = job
        self._leadership = leadership
        self._lock = threading.Lock()
        self._addresses: frozenset[str] = frozenset()
        self._key = b""
        self._proofs: proof.ProofChecker | None = None
        self._tokens: token.TokenChecker | None = None
        self._strangers = RareLog(audit_log, _REFUSALS_S)
        self.mode = SecurityMode.INSECURE
        self.refusals = 0

    def begin(self, address: str, host: str, port: int) -> None:
        """Serve at an address.

        Args:
            address: host:port, as others know it.
            host: The address of this machine that it listens at.
            port: The port it listens at.

        Raises:
            ConfigurationError: Nothing says how tasks show who they are, or a file cannot be used.
        """
        self.mode = security_mode(self._settings, address, self._settings.host)
        self._addresses = _addresses(address, host, port)
        if self.mode is SecurityMode.LOCAL:
            self._key = key_of(self._settings)
            self._proofs = proof.ProofChecker(self._key, since_boot_s())
        elif self.mode is SecurityMode.TOKEN:
            if not self._settings.token_keys:
                raise ConfigurationError(
                    f"{self._task} checks tokens, so it needs the public keys they are signed with:"
                    " --token-keys (ROPEWALK_TOKEN_KEYS)"
                )
            self._tokens = token.TokenChecker(self._settings.token_keys)
        elif self.mode is SecurityMode.INSECURE:
            log.warning(
                "insecure: whoever reaches port %d can read and change the model and end the job",
                port,
            )

    def admit(
        self,
        operation: str,
        authorization: str = "",
        shown: Principal | None = None,
        address: str = "",
    ) -> "Visitor":
        """Authenticate and authorize a caller.

        Args:
            operation: A key of :data:`~ropewalk.cluster.access.RULES`.
            authorization: Authorization that came with the call; empty: there was none.
            shown: Principal that the connection itself shows, if it does.
            address: Address of the caller, for messages.

        Raises:
            UnauthenticatedError: It is not known who calls.
            PermissionDeniedError: The caller may not do that.
            OtherJobError: The caller belongs to another job.
        """
        try:
            visitor = Visitor(self, self._identify(operation, authorization, shown), address)
        except AccessError as error:
            refused = type(error)(
                f"{self._task}: {_name(operation)} is refused: {error.message}", **error.fields
            )
            self.audit(operation, None, address, refused)
            raise refused from None
        visitor.check(operation)
        return visitor

    def answer(self, operation: str, authorization: str) -> str:
        """Make the proof for an admitted caller that this server is the right one; empty: none."""
        asked = proof.read_asked(authorization) if self.mode is SecurityMode.LOCAL else None
        if asked is None:
            return ""
        return proof.answer(self._key, proof.Purpose(operation, asked.address), asked.nonce)

    def _identify(
        self, operation: str, authorization: str, shown: Principal | None
    ) -> Principal | None:
        if self.mode is SecurityMode.INSECURE or not rule_of(operation).roles:
            return shown
        if shown is not None:
            return shown
        if self._proofs is not None:
            if not authorization:
                raise UnauthenticatedError(
                    "the caller did not show that it belongs to this user. Tasks on loopback prove "
                    "a key that only their user can read; a task that runs with --insecure, or an "
                    "older version, does not"
                )
            with self._lock:
                return self._proofs.check(authorization, operation, self._addresses, since_boot_s())
        if self._tokens is not None:
            scheme, _, credentials = authorization.partition(" ")
            if scheme != token.SCHEME or not credentials:
                raise UnauthenticatedError(
                    "the caller showed no token; give it one with --token-file "
                    "(`ropewalk token new` makes one)"
                )
            return self._tokens.check(credentials)
        raise UnauthenticatedError(
            "the caller showed no certificate; give it one with --tls-cert and --tls-key "
            "(`ropewalk certs issue` makes one)"
        )

    def check(self, who: Principal | None, operation: str, address: str) -> None:
        """See :meth:`Visitor.check`."""
        if who is None:
            return
        try:
            check_access(
                who,
                operation,
                server=self._task,
                job=self._job(),
                leadership=self._leadership(),
                is_proven=self.mode.encrypts,
            )
        except (AccessError, OtherJobError) as error:
            self.audit(operation, who, address, error)
            raise
        if rule_of(operation).audited:
            self.audit(operation, who, address, None)

    def check_claim(self, who: Principal | None, claimed: Incarnation, address: str) -> None:
        """See :meth:`Visitor.check_claim`."""
        if who is None:
            return
        try:
            check_claim(who, claimed.task, claimed.job, server=self._task)
        except AccessError as error:
            self.audit("claim", who, address, error)
            raise

    def audit(
        self, operation: str, who: Principal | None, address: str, refused: RopewalkError | None
    ) -> None:
        """Log a privileged act, or a refused one.

        Of refusals there is one line in a second for each caller and act, and one for all unknown
        callers, and of what is allowed 50, with the number of the others: they could fill the disk.
        """
        named = "audit: %s %s by %s from %s"
        words = (self._task.short, _name(operation), who or "a stranger", address or "here")
        self.refusals += refused is not None  # approximate: two at the same time may count once
        if refused is not None:
            rare = self._strangers if who is None else _refusals_of(self._task, who, operation)
            rare.warning(
                f"{named}: refused: %s",
                *words,
                refused.message,
                about="caller.refused",
                caller=words[2],
                why=refused.message,
            )
        elif self.mode.encrypts and who is not None:
            _uses_of(self._task, who, operation).info(f"{named}: allowed", *words)
        else:
            audit_log.debug(f"{named}: allowed", *words)


class CallerLine(Protocol):
    """The connection that a call came over; also after the answer. None of it waits."""

    @property
    def pings_answered(self) -> int:
        """Number of pings that the other end has answered."""
        ...

    def is_open(self) -> bool:
        """Return whether it has not ended, as far as is known here."""
        ...

    def ping(self) -> None:
        """Ask the other end whether its process runs."""
        ...


@dataclass(frozen=True, slots=True)
class Visitor:
    """A caller that was admitted.

    Attributes:
        principal: Principal of the caller; None: this server does not ask.
        address: Address of the caller.
        is_waiting: Returns whether it still waits for the answer.
        line: The connection; None: there is none, and the caller is of this process.
    """

    _guard: Guard
    principal: Principal | None
    address: str = ""
    is_waiting: Callable[[], bool] = lambda: True
    line: CallerLine | None = None

    @property
    def mode(self) -> SecurityMode:
        """Mode in which callers of this server authenticate themselves."""
        return self._guard.mode

    @property
    def has_own_index(self) -> bool:
        """Whether the caller's credentials are valid for the task of one index alone.

        A key is valid for all tasks.
        """
        shown = self.principal
        return self.mode.encrypts and shown is not None and shown.index is not None

    def check(self, operation: str) -> None:
        """Check that the caller may do something.

        Raises:
            PermissionDeniedError: It may not.
        """
        self._guard.check(self.principal, operation, self.address)

    def check_claim(self, claimed: Incarnation) -> None:
        """Check that the caller is the task that it claims to be.

        Raises:
            PermissionDeniedError: It is another one.
        """
        self._guard.check_claim(self.principal, claimed, self.address)


def _addresses(address: str, host: str, port: int) -> frozenset[str]:
    """List the addresses under which callers may dial a server that listens at ``host`` and
    ``port``.
    """
    known_as = address.rpartition(":")[0]
    hosts = {address for address in (host, known_as) if address and not is_localhost(address)}
    if ipaddress.ip_address(host).is_unspecified:
        hosts |= {"127.0.0.1", "::1"}
    return frozenset(
        f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        for host in hosts
    )


@lru_cache(maxsize=_CALLERS)
def _refusals_of(task: TaskId, who: Principal, operation: str) -> RareLog:  # noqa: ARG001 - the key
    return RareLog(audit_log, _REFUSALS_S)


@lru_cache(maxsize=_CALLERS)
def _uses_of(task: TaskId, who: Principal, operation: str) -> RareLog:  # noqa: ARG001 - the key
    return RareLog(audit_log, _REFUSALS_S, _USES)


def _name(operation: str) -> str:
    return operation.rpartition("/")[2]
