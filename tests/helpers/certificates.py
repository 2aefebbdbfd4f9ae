"""Certificates of tests: one CA for a run, and files of tasks beside it."""

import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from ropewalk.annexes.certificates.command import Authority, Issued, issue, make_authority
from ropewalk.cluster.access.principal import Principal
from ropewalk.core.settings import Settings

LOCAL = ("localhost", "127.0.0.1", "::1")


@cache
def authority(name: str = "test CA") -> Authority:
    """The CA of this name."""
    return make_authority(30, name=name)


def issued(
    role: str = "ps",
    index: int | None = 0,
    *,
    ca: str = "test CA",
    hosts: tuple[str, ...] = LOCAL,
    begins_in_days: float = 0.0,
    days: float = 1.0,
    job: str = "",
) -> Issued:
    """A certificate of a task. It began or begins so many days from now."""
    begins = datetime.now(UTC) + timedelta(days=begins_in_days)
    return issue(authority(ca), Principal(role, job, index), hosts, days, now=begins)


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
