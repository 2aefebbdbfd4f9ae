"""Certificates of tests: one CA for a run, and files of tasks beside it."""

import ipaddress
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings

LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A CA."""

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.BasicConstraints(ca=True, path_length=0)
        usage = _usage(signs=True)
        now, ours = datetime.now(UTC), self._key.public_key()
        self.pem = self._sign(self._name, ours, now, 30, issuer, usage)

    def issue(
        self, who: Principal, hosts: tuple[str, ...], begins: datetime, days: float, uri: str = ""
    ) -> Issued:
        """A certificate for both sides of a connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.UniformResourceIdentifier(uri or who.uri()), *map(_host, hosts)]
        made = self._sign(
            _name(who.path.replace("/", " ")), key.public_key(), begins, days,
            x509.BasicConstraints(ca=False, path_length=None), _usage(signs=False),
            x509.SubjectAlternativeName(names),
        )  # fmt: skip
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Issued(made, secret)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, days: float,
        constraints: x509.BasicConstraints, usage: x509.KeyUsage, *others: x509.ExtensionType,
    ) -> bytes:  # fmt: skip
        ends = begins + timedelta(days=days)
        made = (
            x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
            .not_valid_before(min(begins, ends) - timedelta(minutes=5))
            .not_valid_after(ends)
            .add_extension(constraints, critical=True)
            .add_extension(usage, critical=True)
        )
        ours = self._key.public_key()
        for extension in (
            x509.SubjectKeyIdentifier.from_public_key(key),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ours),
            *others,
        ):
            made = made.add_extension(extension, critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


@cache
def authority(name: str = "test CA") -> Authority:
    """The CA of this name."""
    return Authority(name)


def issued(
    role: str = "ps",
    index: int | None = 0,
    *,
    ca: str = "test CA",
    hosts: tuple[str, ...] = LOCAL,
    begins_in_days: float = 0.0,
    days: float = 1.0,
    job: str = "",
    uri: str = "",
) -> Issued:
    """A certificate of a task, or of whom a URI names; it began or begins so many days from now."""
    begins = datetime.now(UTC) + timedelta(days=begins_in_days)
    return authority(ca).issue(Principal(role, job, index), hosts, begins, days, uri)


def write(folder: Path, files: Issued, ca: str = "test CA") -> dict[str, Any]:
    """Write certificate, key and CA; the settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.crt").write_bytes(files.certificate)
    (folder / "tls.key").touch(0o600)
    (folder / "tls.key").write_bytes(files.key)
    (folder / "ca.crt").write_bytes(authority(ca).pem)
    return {
        "tls_cert": str(folder / "tls.crt"),
        "tls_key": str(folder / "tls.key"),
        "tls_ca": str(folder / "ca.crt"),
        "insecure": False,
    }


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="certificates-")


@cache
def tls_settings(role: str = "ps", index: int | None = 0) -> dict[str, Any]:
    """Settings of a task with a valid certificate; its files are there until the end of the run."""
    return write(Path(_folder().name) / f"{role}-{index}", issued(role, index))


def with_tls(settings: Settings, role: str = "ps", index: int | None = 0) -> Settings:
    """The same settings, with a valid certificate of this task."""
    return settings.model_copy(update=tls_settings(role, index))
