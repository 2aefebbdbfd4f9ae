"""``ropewalk certs``: a CA for a small team, certificates of tasks, and what a certificate says."""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...cluster.access import ROLES, Principal, principal_of_uri
from ...core.errors import ConfigurationError
from ...core.outside_text import read_plain
from ...launch.screen.plain import echo

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# -- A CA for a small team, and the certificates of its tasks: two files each, PEM -------------
# Keys are ECDSA P-256, certificates of X.509 version 3. Who has cert-manager, SPIRE or a CA of
# their own takes that: what tasks need is written in docs/security.md.


CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
# Clocks differ by seconds: a certificate is used at once, also where it is earlier.
_BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: its certificate and its key."""

    certificate: "x509.Certificate"
    key: "EllipticCurvePrivateKey"

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return _pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """The key, without a password."""
        return _key_pem(self.key)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


def require_cryptography() -> None:
    """Check that the package is installed.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "certificates are made with the package cryptography, which is not installed: "
            "pip install 'ropewalk[security]'"
        ) from error


def make_authority(
    days: float, *, name: str = "ropewalk CA", now: datetime | None = None
) -> Authority:
    """Make a new CA.

    Args:
        days: Days for which its certificate is valid, from now on.
        name: Name of the CA.
        now: The time, in UTC.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), _name(name), key, days, now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Authority,
    principal: Principal,
    hosts: Sequence[str],
    days: float,
    *,
    now: datetime | None = None,
) -> Issued:
    """Issue a certificate that the CA signs, for both sides of a connection.

    Args:
        authority: The CA.
        principal: Principal that the certificate names.
        hosts: DNS names and addresses where it is dialled.
        days: Days for which it is valid, from now on; at most as long as the CA's.
        now: UTC.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    until = authority.certificate.not_valid_after_utc
    builder = _builder(issuer, _name(principal.path.replace("/", " ")), key, days, now, until)
    alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(principal.uri())]
    alternatives += [_general_name(host) for host in hosts]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    return Issued(_pem(builder.sign(authority.key, hashes.SHA256())), _key_pem(key))


def load_authority(folder: Path) -> Authority:
    """Load the CA that :func:`write_authority` left in a folder.

    Raises:
        ConfigurationError: There is none.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        texts = [read_plain(folder / name) for name in (CA_CERTIFICATE, CA_KEY)]
        certificate = x509.load_pem_x509_certificate(texts[0])
        key = serialization.load_pem_private_key(texts[1], None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{folder} holds no CA ({error}); `ropewalk certs init {folder}` makes one"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{folder / CA_KEY} is no ECDSA key, as `certs init` writes it")
    return Authority(certificate, key)


def write_pair(certificate: Path, content: bytes, key: Path, key_content: bytes) -> None:
    """Write a certificate and its key, which this user alone can read. Both replace older ones.

    Raises:
        ConfigurationError: They cannot be written.
    """
    try:
        certificate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, data, mode in ((key, key_content, 0o600), (certificate, content, 0o644)):
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            with os.fdopen(number, "wb") as file:
                file.write(data)
            beside.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"{certificate.parent} cannot be written: {error.strerror or error}"
        ) from error


def _builder(
    issuer: "x509.Name",
    subject: "x509.Name",
    key: "EllipticCurvePrivateKey",
    days: float,
    now: datetime | None,
    until: datetime | None = None,
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = now or datetime.now(UTC)
    ends = now + timedelta(days=days)
    begins = min(now, ends) - _BACKDATED
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(min(ends, until) if until is not None else ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _key_usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigurationError(f"--host {host!r} is neither a name nor an address") from error


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


_CA_DAYS, _DAYS = 3650.0, 90.0


@click.group("certs")
def certs_command() -> None:
    """Make a CA and certificates of tasks, and show what a certificate says."""


@certs_command.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--days", default=_CA_DAYS, show_default=True, help="How long the CA is valid.")
def init_command(folder: Path, days: float) -> None:
    """Make a CA in FOLDER: ca.pem, which all tasks get, and ca.key, which nobody else may read."""
    require_cryptography()
    _check_days(days)
    if (folder / CA_KEY).exists():
        raise ConfigurationError(
            f"{folder} holds a CA already, and what it signed would be worth nothing with another; "
            "name another folder"
        )
    authority = make_authority(days)
    write_pair(folder / CA_CERTIFICATE, authority.pem, folder / CA_KEY, authority.key_pem)
    echo(f"made the CA {folder / CA_CERTIFICATE}; keep {folder / CA_KEY} to yourself")


@certs_command.command("issue")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--job", required=True, help="Id of the job, as the tasks' --job-id.")
@click.option("--role", required=True, type=click.Choice(ROLES), help="What the task may do.")
@click.option("--index", type=int, help="Of the task. Left out: any task of the role.")
@click.option(
    "--host", "hosts", multiple=True, required=True,
    help="Name or address where others dial the task. May be given several times.",
)  # fmt: skip
@click.option("--days", default=_DAYS, show_default=True, help="How long it is valid.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the files. Default: FOLDER/ROLE-INDEX.",
)  # fmt: skip
def issue_command(
    folder: Path,
    job: str,
    role: str,
    index: int | None,
    hosts: tuple[str, ...],
    days: float,
    out: Path | None,
) -> None:
    """Have the CA in FOLDER sign a certificate: tls.crt, tls.key and ca.crt.

    The names are those that cert-manager writes into a Secret of Kubernetes.
    """
    require_cryptography()
    _check_days(days)
    principal = Principal(role, job, index)
    authority = load_authority(folder)
    pair = issue(authority, principal, hosts, days)
    where = out or folder / (role if index is None else f"{role}-{index}")
    write_pair(where / "tls.crt", pair.certificate, where / "tls.key", pair.key)
    (where / "ca.crt").write_bytes(authority.pem)
    echo(f"issued {where / 'tls.crt'} for {principal}; its task needs")
    echo(f"  --tls-cert {where / 'tls.crt'} --tls-key {where / 'tls.key'} \\")
    echo(f"  --tls-ca {where / 'ca.crt'}")


@certs_command.command("show")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show_command(file: Path) -> None:
    """Show what the first certificate in FILE says, and whether it is valid now."""
    from rich.table import Table

    from ...launch.screen.display import TerminalConsole
    from ...net.auth.tls_failures import CertificateFacts, read_facts

    require_cryptography()
    try:
        facts: CertificateFacts | None = read_facts(read_plain(file))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from error
    if facts is None:
        raise ConfigurationError(f"{file} holds no certificate that can be read")
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in (
        ("subject", facts.subject),
        ("issuer", facts.issuer),
        ("principal", _principals(facts.uris)),
        ("hosts", ", ".join(facts.names) or "none"),
        ("valid from", f"{facts.not_before:%Y-%m-%d %H:%M:%S} UTC"),
        ("valid until", f"{facts.not_after:%Y-%m-%d %H:%M:%S} UTC"),
        ("now", _state(facts.not_before, facts.not_after, datetime.now(UTC))),
    ):
        table.add_row(*row)
    TerminalConsole().print(table)


def _principals(uris: tuple[str, ...]) -> str:
    names = []
    for uri in uris:
        try:
            names.append(f"{principal_of_uri(uri)} ({uri})")
        except ConfigurationError:
            names.append(f"{uri} (not in our form)")
    return ", ".join(names) or "none: tasks need one"


def _state(begins: datetime, ends: datetime, now: datetime) -> str:
    if now < begins:
        return f"not valid yet: in {(begins - now).total_seconds() / 86400:.1f} days"
    if now >= ends:
        return f"expired {(now - ends).total_seconds() / 86400:.1f} days ago"
    return f"valid, for {(ends - now).total_seconds() / 86400:.1f} days"


def _check_days(days: float) -> None:
    if days <= 0:
        raise ConfigurationError(f"--days {days:g}: a certificate is valid for more than 0 days")
