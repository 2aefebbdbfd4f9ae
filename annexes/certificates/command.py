"""``ropewalk certs``: a CA for a small team, certificates of tasks, and what a certificate says."""

from datetime import UTC, datetime
from pathlib import Path

import click

from ...cluster.access.principal import ROLES, Principal, principal_of_uri
from ...core.errors import ConfigurationError
from ...core.files.plain_file import read_plain
from ...launch.screen.echo import echo

_CA_DAYS, _DAYS = 3650.0, 90.0


@click.group("certs")
def certs_command() -> None:
    """Make a CA and certificates of tasks, and show what a certificate says."""


@certs_command.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--days", default=_CA_DAYS, show_default=True, help="How long the CA is valid.")
def init_command(folder: Path, days: float) -> None:
    """Make a CA in FOLDER: ca.pem, which all tasks get, and ca.key, which nobody else may read."""
    from .authority import CA_CERTIFICATE, CA_KEY, make_authority, require_cryptography, write_pair

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
    from .authority import issue, load_authority, require_cryptography, write_pair

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

    from ...launch.screen.terminal import TerminalConsole
    from ...net.auth.tls_failures import CertificateFacts, read_facts
    from .authority import require_cryptography

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
