"""``ropewalk certs`` and ``ropewalk doctor``: what they write, show and exit with."""

import socket
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from helpers.tls_files import tls_settings, with_tls
from ropewalk.annexes.certificates.command import Authority, issue
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import ConfigurationError, RopewalkError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.launch import cli
from ropewalk.net.auth.tls_files import CredentialFiles
from ropewalk.net.this_machine import free_ports
from ropewalk.server.ps.server import PsServer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.ropewalk, arguments, standalone_mode=False)


def done(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exception is None, result.exception
    return result.output


def test_a_task_can_use_what_certs_make(tmp_path: Path) -> None:
    ca = str(tmp_path / "ca")
    done("certs", "init", ca)
    said = done(
        "certs", "issue", ca, "--job", "mnist", "--role", "ps", "--index", "0",
        "--host", "ps-0.train", "--host", "10.0.0.7",
    )  # fmt: skip
    made = tmp_path / "ca" / "ps-0"
    assert f"--tls-cert {made / 'tls.crt'}" in said
    files = [str(made / name) for name in ("tls.crt", "tls.key", "ca.crt")]
    assert CredentialFiles(*files, mutual=True).current().server is not None
    for key in (made / "tls.key", tmp_path / "ca" / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    shown = done("certs", "show", files[0])
    for each in ("ps:0 of job mnist", "ps-0.train, 10.0.0.7", "valid, for 90.0 days"):
        assert each in shown


def test_a_ca_of_a_company_issues_certificates_that_chain_to_it(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    parts = {
        NameOID.COUNTRY_NAME: "NL",
        NameOID.ORGANIZATION_NAME: "Acme",
        NameOID.COMMON_NAME: "A",
    }
    name = x509.Name([x509.NameAttribute(*part) for part in parts.items()])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = issue(Authority(certificate, key), Principal("ps", "mnist", 0), ["ps-0.train"], 1)
    found = x509.load_pem_x509_certificate(made.certificate)
    found.verify_directly_issued_by(certificate)
    assert found.issuer == name


def test_a_ca_is_not_replaced(tmp_path: Path) -> None:
    done("certs", "init", str(tmp_path))
    before = (tmp_path / "ca.key").read_bytes()
    error = run("certs", "init", str(tmp_path)).exception
    assert isinstance(error, ConfigurationError)
    assert "holds a CA already" in error.message
    assert (tmp_path / "ca.key").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--role", "ps", "--host", "x"], "holds no CA"),
        (["--role", "driver", "--index", "1", "--host", "x"], "a driver has no index"),
        (["--role", "ps", "--host", "x", "--days", "0"], "more than 0 days"),
    ],
)
def test_mistakes_of_issue_are_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    error = run("certs", "issue", str(tmp_path), "--job", "mnist", *arguments).exception
    assert isinstance(error, RopewalkError)
    assert says in error.message


@pytest.fixture
def secured() -> Iterator[PsServer]:
    server = PsServer(TaskId("ps", 0), with_tls(Settings()))
    server.start("127.0.0.1:0")
    yield server
    server.stop()


def flags(*names: str) -> list[str]:
    files = tls_settings("driver", None)
    return [each for name in names for each in (f"--{name.replace('_', '-')}", files[name])]


@pytest.mark.parametrize(
    ("given", "code", "fails", "says"),
    [
        (("tls_cert", "tls_key", "tls_ca"), 0, "", "/job:ps/task:0"),
        (("tls_ca",), 8, "certificate", "none to show"),
        ((), 8, "encryption", "speaks TLS"),
    ],
    ids=["in order", "no certificate", "plaintext"],
)
def test_doctor_names_the_step_that_fails(
    secured: PsServer, given: tuple[str, ...], code: int, fails: str, says: str
) -> None:
    result = run("doctor", f"127.0.0.1:{secured.port}", *flags(*given))
    assert result.exit_code == code
    failed = [line.split()[0] for line in result.output.splitlines() if " FAILS " in line]
    assert failed == ([fails] if fails else [])
    assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("address", "code", "fails"),
    [("", 138, "port"), ("nowhere.invalid:1", 138, "DNS"), ("here", 2, "address")],
)
def test_doctor_of_what_is_not_there(address: str, code: int, fails: str) -> None:
    result = run("doctor", address or f"127.0.0.1:{free_ports(1)[0]}", "--insecure")
    assert result.exit_code == code
    assert any(line.startswith(fails) and " FAILS " in line for line in result.output.splitlines())


@pytest.mark.parametrize(("mode", "fails"), [("insecure", "identity"), ("mtls", "encryption")])
def test_doctor_takes_nothing_for_granted_of_a_port_that_never_answers(
    mode: str, fails: str
) -> None:
    given = flags("tls_ca", "tls_cert", "tls_key") if mode == "mtls" else ["--insecure"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = run("doctor", address, "--timeout-s", "0.2", *given)
    assert result.exit_code == 138
    failed = [line.split()[0] for line in result.output.splitlines() if " FAILS " in line]
    assert failed == [fails]


def test_doctor_says_that_a_file_of_this_side_cannot_be_used(
    secured: PsServer, tmp_path: Path
) -> None:
    (tmp_path / "tls.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA")
    given = [*flags("tls_ca", "tls_key"), "--tls-cert", str(tmp_path / "tls.crt")]
    result = run("doctor", f"127.0.0.1:{secured.port}", *given)
    assert result.exit_code == 2
    failed = [line.split()[0] for line in result.output.splitlines() if " FAILS " in line]
    assert failed == ["encryption"]
    assert "is truncated" in " ".join(result.output.split())
