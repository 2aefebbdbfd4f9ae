"""Contents of certificates: the principal, for the program, and the rest, for people."""

from collections.abc import Mapping

from ...cluster.access.principal import Principal, principal_of_uri
from ...core.errors import ConfigurationError, UnauthenticatedError
from .failures import CertificateFacts, no_principal


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
