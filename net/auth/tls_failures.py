"""Failures of TLS in plain words. Pure: OpenSSL's error and the first bytes make a sentence."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ...cluster.access import Principal, principal_of_uri
from ...core.errors import ConfigurationError, UnauthenticatedError

Side = Literal["client", "server"]

_RECORD_TYPES = (0x14, 0x15, 0x16, 0x17)  # what a TLS record begins with


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The facts of a certificate, for people.

    Attributes:
        subject: Subject of the certificate, e.g. ``CN=ps-0``.
        issuer: The name of the CA that signed it.
        names: Hosts of the certificate: DNS names and addresses.
        uris: URIs of the certificate, of which one may name a principal.
        not_before: Valid from this time, UTC.
        not_after: Valid until this time, UTC.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    uris: tuple[str, ...]
    not_before: datetime
    not_after: datetime


# X509_V_ERR_*: why OpenSSL does not trust a certificate.
_NOT_YET_VALID, _EXPIRED = 9, 10
_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _NO_ISSUER, _NO_LEAF_SIGNATURE = 18, 19, 20, 21
WRONG_PURPOSE = 26
"""A certificate is for clients or for servers alone."""
_WRONG_HOST, _WRONG_ADDRESS = 62, 64

_DISTRUST = {
    _SELF_SIGNED: "is self-signed; have the CA in tls_ca sign one, as `ropewalk certs issue` does",
    _SELF_SIGNED_IN_CHAIN: "comes from another CA than those in tls_ca; give all tasks of the job "
    "certificates and a tls_ca of one CA, or put both CAs into tls_ca",
    WRONG_PURPOSE: "is not for this side of a connection; a task's certificate needs the extended "
    "key usages serverAuth and clientAuth",
}
_DISTRUST[_NO_ISSUER] = _DISTRUST[_NO_LEAF_SIGNATURE] = _DISTRUST[_SELF_SIGNED_IN_CHAIN]

# What the other side's alert means, by OpenSSL's name for it without its prefix. "Ours": the
# certificate that this side showed.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and this process has none to show; set "
    "tls_cert and tls_key (ROPEWALK_TLS_CERT, ROPEWALK_TLS_KEY)",
    "CERTIFICATE_EXPIRED": "our certificate has expired by its clock; renew tls_cert, or set the "
    "clock of that machine",
    "UNKNOWN_CA": "it does not know the CA of our certificate; give both sides certificates of one "
    "CA, or add ours to its tls_ca",
    "BAD_CERTIFICATE": "it refuses our certificate: mostly one that is not valid yet by its clock, "
    "or that does not name the host it dialled",
    "CERTIFICATE_UNKNOWN": "it refuses our certificate; its log says why",
    "UNSUPPORTED_CERTIFICATE": "our certificate is not for this side of a connection; it needs the "
    "extended key usages serverAuth and clientAuth",
    "CERTIFICATE_REVOKED": "our certificate is revoked",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3, which is the only version used here",
    "INSUFFICIENT_SECURITY": "it demands other ciphers than TLS 1.3 has",
    "DECRYPT_ERROR": "the key does not fit the certificate that was shown",
    "ACCESS_DENIED": "it refuses our certificate; its log says why",
    "NO_APPLICATION_PROTOCOL": "it does not speak HTTP/2",
    "HANDSHAKE_FAILURE": "the two sides have no way to encrypt in common: does it speak TLS 1.3?",
}
_OLD_TLS = ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "WRONG_SSL_VERSION", "TLSV1_ALERT_PROTOCOL")

PLAINTEXT_CLIENT = (
    "this port speaks TLS, and the client does not: set tls_ca (ROPEWALK_TLS_CA) there to the "
    "job's CA, and tls_cert and tls_key where tasks show certificates"
)
PLAINTEXT_SERVER = (
    "the port does not speak TLS: it runs insecure or without certificates, or it is another "
    "program's; start it with tls_cert and tls_key, or take tls_ca away here"
)
_CUT_OFF = (
    "closed the connection in the middle of the TLS handshake; it may be stopping, or not speak TLS"
)


def explain(
    error: ssl.SSLError | None,
    *,
    side: Side,
    peer: str,
    began: bytes = b"",
    certificate: CertificateFacts | None = None,
    now: datetime | None = None,
) -> UnauthenticatedError | ConnectionError:
    """Make the error for a TLS connection that failed.

    Args:
        error: OpenSSL's; None: the other side closed the connection.
        side: Side of this process.
        peer: Name of the peer.
        began: The first bytes that came from the peer.
        certificate: The peer's, if it is known.
        now: The time by this machine's clock, UTC, if that is known.

    Returns:
        UnauthenticatedError where trying again would fail again, else ConnectionError.
    """
    if error is None:
        return ConnectionError(f"{peer} {_CUT_OFF}")
    reason = (error.reason or "").upper()
    if _is_plaintext(began) or "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason:
        message = PLAINTEXT_SERVER if side == "client" else PLAINTEXT_CLIENT
        return UnauthenticatedError(f"{peer}: {message}", peer=peer)
    if isinstance(error, ssl.SSLCertVerificationError):
        message = _distrust(error, certificate, now)
    elif "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        message = (
            "it showed no certificate, which security=mtls asks for; set tls_cert and tls_key "
            "(ROPEWALK_TLS_CERT, ROPEWALK_TLS_KEY) there"
        )
    elif any(name in reason for name in _OLD_TLS) and "ALERT" not in reason:
        message = "it offers an older version than TLS 1.3, which is the only one used here"
    elif "ALERT" in reason and (alert := _alert(reason)):
        message = alert
    else:
        text = error.reason or error.strerror or str(error)
        return ConnectionError(f"the TLS connection with {peer} broke: {text.lower()}")
    return UnauthenticatedError(f"{peer}: {message}", peer=peer)


def _is_plaintext(began: bytes) -> bool:
    return len(began) > 1 and (began[0] not in _RECORD_TYPES or began[1] != 3)


def _alert(reason: str) -> str:
    _, _, name = reason.partition("ALERT_")
    return _ALERTS.get(name, "")


def _distrust(
    error: ssl.SSLCertVerificationError, facts: CertificateFacts | None, now: datetime | None
) -> str:
    code = error.verify_code
    clock = f"; the clock here says {_moment(now)}" if now is not None else ""
    if code == _EXPIRED:
        when = f" on {_moment(facts.not_after)}" if facts is not None else ""
        return f"its certificate has expired{when}{clock}. Renew it, or set this clock"
    if code == _NOT_YET_VALID:
        when = f" before {_moment(facts.not_before)}" if facts is not None else " yet"
        return f"its certificate is not valid{when}{clock}. Set the clock that is wrong, or wait"
    if code in (_WRONG_HOST, _WRONG_ADDRESS):
        has = f"it is for {', '.join(facts.names) or 'no host'}" if facts is not None else ""
        wrong = error.verify_message.rstrip(".")
        return (
            f"its certificate is not for this address ({has or wrong}); dial it by a name in "
            "its certificate, or issue one with `--host` for this name"
        )
    return f"its certificate {_DISTRUST.get(code, f'is not trusted: {error.verify_message}')}"


def _moment(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def no_principal(certificate: Mapping[str, object], peer: str, why: str = "") -> str:
    """Write the message for a certificate that names no principal of ours.

    Args:
        certificate: Certificate as ``ssl`` decodes it.
        peer: Peer that showed it.
        why: Reason why the names in it are no principals.
    """
    alternatives = certificate.get("subjectAltName", ())
    named = [f"{kind}:{value}" for kind, value in alternatives]  # type: ignore[attr-defined]
    subject = [f"{k}={v}" for part in certificate.get("subject", ()) for k, v in part]  # type: ignore[attr-defined]
    has = ", ".join([*subject, *named]) or "nothing"
    return (
        f"{peer}: its certificate names {has[:400]}, and no principal"
        f"{f' ({why})' if why else ''}; it needs a URI among its alternative names, "
        "spiffe://TRUST_DOMAIN/ropewalk/JOB/ROLE/INDEX, as `ropewalk certs issue` writes it"
    )


def principal_of_certificate(certificate: Mapping[str, object], peer: str) -> Principal:
    """Find the principal that a verified certificate names.

    Args:
        certificate: Certificate as ``ssl`` decodes it.
        peer: Peer that showed it, for messages.

    Raises:
        UnauthenticatedError: It names no principal in our form, or more than one.
    """
    alternatives = certificate.get("subjectAltName", ())
    uris = [value for kind, value in alternatives if kind == "URI"]  # type: ignore[attr-defined]
    principals: list[Principal] = []
    why = ""
    for uri in uris:
        try:
            principals.append(principal_of_uri(uri))
        except ConfigurationError as error:
            why = error.message
    if len(principals) > 1:
        why = f"it names {len(principals)} principals"
    if len(principals) != 1:
        raise UnauthenticatedError(no_principal(certificate, peer, why), peer=peer)
    return principals[0]


def read_facts(data: bytes) -> CertificateFacts | None:
    """Read the facts of a certificate, PEM or DER.

    Returns:
        Facts of the certificate; None if it cannot be read, or the package ``cryptography`` is not
        installed.
    """
    try:
        from cryptography import x509
    except ImportError:
        return None
    try:
        if b"-----BEGIN" in data:
            certificate = x509.load_pem_x509_certificate(data)
        else:
            certificate = x509.load_der_x509_certificate(data)
        names: list[str] = []
        uris: list[str] = []
        for kept in certificate.extensions:
            if isinstance(kept.value, x509.SubjectAlternativeName):
                names += kept.value.get_values_for_type(x509.DNSName)
                names += map(str, kept.value.get_values_for_type(x509.IPAddress))
                uris += kept.value.get_values_for_type(x509.UniformResourceIdentifier)
    except ValueError:
        return None
    return CertificateFacts(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        tuple(names),
        tuple(uris),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
