"""Tokens: signed statements of who a task is, which expire (JSON Web Tokens, RFC 7519)."""

import datetime
import hashlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from ...cluster.access import Principal
from ...core.errors import ConfigurationError, UnauthenticatedError
from ...core.outside_text import read_plain
from .proof import check_not_open, read_secret

log = logging.getLogger(__name__)

SCHEME = "Bearer"
ISSUER = "ropewalk"
_ALGORITHM = "EdDSA"
_LEEWAY_S = 30  # clocks of machines differ
_MAX_BYTES = 4096
_KEPT = 1024  # tokens that were checked before

_Version = tuple[int, int, int, int]  # a file's: it changes with the content


class TokenFile:
    """A file with the task's own token, read again when the file changes. Thread-safe.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read: _Version | None = None
        self._token = ""
        self._lock = threading.Lock()

    def token(self) -> str:
        """Read the token; the last complete one while the file is being written.

        Raises:
            ConfigurationError: There was none yet, and the file cannot be used.
        """
        with self._lock:
            try:
                version = _version(self._path)
                if version != self._read:
                    self._token = _whole(read_secret(self._path, "a token"), self._path)
                    self._read = version
            except (OSError, ConfigurationError) as error:
                if self._token:
                    if self._read is not None:
                        log.warning("the token before is used on: %s", error)
                        self._read = None
                    return self._token
                if isinstance(error, ConfigurationError):
                    raise
                raise ConfigurationError(
                    f"the token {self._path} (token_file) cannot be read: {error.strerror or error}"
                ) from error
            return self._token


class TokenChecker:
    """Checks the tokens of callers. Thread-safe.

    Args:
        path: A file with public keys in PEM, one after the other: any of them may have signed.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._keys: list[Any] = []
        self._read: _Version | None = None
        self._known: dict[bytes, tuple[Principal, float]] = {}
        self._lock = threading.Lock()
        self._load()

    def check(self, token: str, now: float | None = None) -> Principal:
        """Check a token, and return who its bearer is.

        Raises:
            UnauthenticatedError: It is not valid.
        """
        if len(token) > _MAX_BYTES:
            raise UnauthenticatedError(f"the token is longer than {_MAX_BYTES} bytes")
        now = time.time() if now is None else now
        digest = hashlib.sha256(token.encode()).digest()
        with self._lock:
            self._load()
            entry = self._known.get(digest)
            if entry is None or entry[1] + _LEEWAY_S < now:
                entry = self._check(token)
                while len(self._known) >= _KEPT:
                    del self._known[next(iter(self._known))]
                self._known[digest] = entry
        return entry[0]

    def _check(self, token: str) -> tuple[Principal, float]:
        jwt = _library()
        why = "it is not signed with a key of this cluster (token_keys)"
        for key in self._keys:
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[_ALGORITHM],
                    issuer=ISSUER,
                    leeway=_LEEWAY_S,
                    options={"require": ["exp", "iat", "iss", "role"]},
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                why = f"it expired{_when(jwt, token, 'exp')}; get a new one (ropewalk token new)"
            except jwt.ImmatureSignatureError:
                why = f"it is not valid yet{_when(jwt, token, 'nbf')}; compare the clocks"
            except jwt.PyJWTError as error:
                why = f"it cannot be read: {error}"
            else:
                return _principal(claims), float(claims["exp"])
            break
        raise UnauthenticatedError(f"the token is refused: {why}")

    def _load(self) -> None:
        try:
            version = _version(self._path)
            if version == self._read:
                return
            check_not_open(self._path, "the keys of tokens")
            text = read_plain(self._path)
            keys = [_public_key(part) for part in _pem_blocks(text)]
        except (OSError, ValueError) as error:
            if self._keys:
                return  # half written: the last keys count until it is complete
            raise ConfigurationError(
                f"the keys of tokens {self._path} (token_keys) cannot be read: {error}"
            ) from error
        if not keys:
            if self._keys:
                return
            raise ConfigurationError(f"{self._path} (token_keys) has no public key in PEM")
        self._keys, self._read = keys, version
        self._known.clear()


def _version(path: Path) -> _Version:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _whole(text: str, path: Path) -> str:
    token = text.strip()
    if token.count(".") != 2 or not token.isascii():
        raise ConfigurationError(f"{path} (token_file) is no token; `ropewalk token new` makes one")
    return token


def sign_token(key: bytes, who: Principal, valid_s: float, now: float | None = None) -> str:
    """Make a token for a principal.

    Args:
        key: A private Ed25519 key in PEM.
        who: The bearer.
        valid_s: Time for which it is valid. Unit: seconds.
        now: Seconds since the epoch; None: the clock's time.
    """
    now = time.time() if now is None else now
    claims: dict[str, object] = {
        "iss": ISSUER,
        "iat": int(now),
        "exp": int(now + valid_s),
        "role": who.role,
    }
    if who.job:
        claims["job"] = who.job
    if who.index is not None:
        claims["index"] = who.index
    token: str = _library().encode(claims, _private_key(key), algorithm=_ALGORITHM)
    return token


def claims_of(token: str) -> dict[str, Any]:
    """Read the claims of a token, unchecked: for people.

    Raises:
        ConfigurationError: It is not a token.
    """
    jwt = _library()
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise ConfigurationError(f"this is no token: {error}") from error
    return claims


def new_keys() -> tuple[bytes, bytes]:
    """Make a private key to sign with and its public key, in PEM."""
    _library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, public_key_of(private)


def public_key_of(private: bytes) -> bytes:
    """Derive the public key of a private one, both in PEM.

    Raises:
        ConfigurationError: It is not a key that signs tokens.
    """
    _library()
    from cryptography.hazmat.primitives import serialization

    public: bytes = (
        _private_key(private)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return public


def _principal(claims: dict[str, Any]) -> Principal:
    role, job, index = claims["role"], claims.get("job", ""), claims.get("index")
    is_index = index is None or (isinstance(index, int) and not isinstance(index, bool))
    if not isinstance(role, str) or not isinstance(job, str) or not is_index:
        raise UnauthenticatedError("the token is refused: role, job or index are of a wrong type")
    try:
        return Principal(role, job, index)
    except ConfigurationError as error:
        raise UnauthenticatedError(f"the token is refused: {error.message}") from error


def _when(jwt: Any, token: str, claim: str) -> str:
    try:
        at = jwt.decode(token, options={"verify_signature": False})[claim]
        moment = datetime.datetime.fromtimestamp(float(at), datetime.UTC)
    except Exception:  # noqa: BLE001 - it only makes the message better
        return ""
    here = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return f" at {moment:%Y-%m-%d %H:%M:%S} UTC (the clock here says {here})"


def _pem_blocks(text: bytes) -> list[bytes]:
    end = b"-----END PUBLIC KEY-----"
    return [part + end for part in text.split(end)[:-1]]


def _public_key(pem: bytes) -> Any:
    _library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.lstrip())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a key is not of Ed25519, which `ropewalk token` makes")
    return key


def _private_key(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the key to sign tokens with cannot be read: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError("the key to sign tokens with is not of Ed25519")
    return key


def _library() -> Any:
    try:
        import cryptography  # noqa: F401 - PyJWT signs with it
        import jwt
    except ImportError as error:
        raise ConfigurationError(
            "tokens need two packages that are not installed here; pip install 'ropewalk[security]'"
        ) from error
    return jwt
