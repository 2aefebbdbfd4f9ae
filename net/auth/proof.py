"""Proofs of a shared key, for loopback, where nothing is encrypted.

The caller sends who it is, the address it dials, a nonce, the time and a MAC over these and over
the operation; the server answers with a MAC over the nonce. So neither sends the key, a process at
another address cannot pass on a proof that it receives, and a proof cannot be replayed. Pure: key,
time and nonces are arguments.
"""

import hashlib
import hmac
import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ...cluster.access.principal import Principal, principal_of_path
from ...core.errors import ConfigurationError, PeerLostError, UnauthenticatedError

SCHEME = "Ropewalk-Key"
VALID_S = 30.0
NONCE_BYTES = 16
_MAX_NONCES = 100_000  # from callers that have the key
_ASKED = re.compile(
    rf"{SCHEME} who=(?P<who>[\w.*/-]{{1,200}}),to=(?P<to>[\w.:\[\]-]{{1,300}}),"
    r"nonce=(?P<nonce>[0-9a-f]{32}),"
    r"at=(?P<at>\d{1,15}),mac=(?P<mac>[0-9a-f]{64})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Purpose:
    """The call that a proof is for.

    Attributes:
        operation: A key of :data:`~ropewalk.cluster.access.rights.RULES`.
        address: The server's, host:port, as it was dialled.
    """

    operation: str
    address: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A caller's proof, of which nothing is checked yet.

    Attributes:
        address: The address that it dialled.
        nonce: Nonce of the proof.
    """

    address: str
    nonce: str


def ask(key: bytes, purpose: Purpose, who: Principal, nonce: str, now: float) -> str:
    """Make the proof that a caller sends.

    Args:
        key: The shared key.
        purpose: The operation, and the server.
        who: The caller.
        nonce: 32 hexadecimal digits, never used twice.
        now: Seconds since this machine started.
    """
    at = int(now * 1000)
    mac = _mac(key, "ask", purpose, who.path, nonce, at)
    return f"{SCHEME} who={who.path},to={purpose.address},nonce={nonce},at={at},mac={mac}"


def read_asked(authorization: str) -> Asked | None:
    """Parse a caller's proof; None: it does not have the form of one."""
    match = _ASKED.fullmatch(authorization)
    return Asked(match["to"], match["nonce"]) if match else None


def answer(key: bytes, purpose: Purpose, nonce: str) -> str:
    """Make the answer of a server that has the key as well."""
    return f"{SCHEME} mac={_mac(key, 'answer', purpose, nonce)}"


def check_answer(key: bytes, purpose: Purpose, nonce: str, said: str) -> bool:
    """Return whether the answer proves that a server has the key."""
    return hmac.compare_digest(answer(key, purpose, nonce).encode(), said.encode())


class ProofChecker:
    """Checks the proofs of callers. Used under a lock.

    Args:
        key: The shared key.
        began: Time at which this server began. Unit: seconds since this machine started.
    """

    def __init__(self, key: bytes, began: float) -> None:
        self._key = key
        self._began_ms = int(began * 1000)
        self._nonces: set[str] = set()
        self._order: deque[tuple[float, str]] = deque()

    def check(self, said: str, operation: str, addresses: Collection[str], now: float) -> Principal:
        """Check a proof, and return who sent it.

        Args:
            said: The caller's proof.
            operation: Operation that the proof is for.
            addresses: Addresses of this server, as host:port.
            now: Seconds since this machine started.

        Raises:
            UnauthenticatedError: It is not valid, or was used before.
            PeerLostError: It was made before this server began, or took too long: ask again.
        """
        match = _ASKED.fullmatch(said)
        if match is None:
            raise UnauthenticatedError("the proof of the key is not in the form it should have")
        at, purpose = int(match["at"]), Purpose(operation, match["to"])
        mac = _mac(self._key, "ask", purpose, match["who"], match["nonce"], at)
        if not hmac.compare_digest(mac, match["mac"]):
            raise UnauthenticatedError(
                "the caller has another key; tasks of one user share the key file of that user "
                "(--key-file), since this machine started"
            )
        if match["to"] not in addresses:
            raise UnauthenticatedError(
                f"the caller dialled {match['to']}, and this is {' or '.join(sorted(addresses))}: "
                "on loopback nothing may pass it on"
            )
        age_s = now - at / 1000
        if at < self._began_ms or age_s > VALID_S:
            # Another process at this port may have received it before, or the caller was stopped.
            raise PeerLostError(f"the proof is {age_s:.0f} s old; ask again")
        if age_s < -1:
            raise UnauthenticatedError(
                f"the proof was made {-age_s:.0f} s from now: tasks that prove a key share one "
                "clock, and this one is in another time namespace"
            )
        self._remember(match["nonce"], now)
        try:
            return principal_of_path(match["who"])
        except ConfigurationError as error:
            raise UnauthenticatedError(error.message) from error

    def _remember(self, nonce: str, now: float) -> None:
        while self._order and (self._order[0][0] < now or len(self._order) >= _MAX_NONCES):
            self._nonces.discard(self._order.popleft()[1])
        if nonce in self._nonces:
            raise UnauthenticatedError("the proof was used before")
        self._nonces.add(nonce)
        self._order.append((now + VALID_S + 1, nonce))


def _mac(key: bytes, kind: str, purpose: Purpose, *parts: object) -> str:
    text = "\n".join(map(str, ("ropewalk 1", kind, purpose.operation, purpose.address, *parts)))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
