"""Certificates of tests: one CA for a run, and files of tasks beside it.

Tests that need one are skipped where the annex that makes them was taken out.
"""

import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings

if TYPE_CHECKING:
    from ropewalk.annexes.certificates.command import Authority, Issued

LOCAL = ("localhost", "127.0.0.1", "::1")


def _annex() -> Any:
    return pytest.importorskip("ropewalk.annexes.certificates.command")


@cache
def authority(name: str = "test CA") -> "Authority":
    """The CA of this name."""
    made: Authority = _annex().make_authority(30, name=name)
    return made


def issued(
    role: str = "ps",
    index: int | None = 0,
    *,
    ca: str = "test CA",
    hosts: tuple[str, ...] = LOCAL,
    begins_in_days: float = 0.0,
    days: float = 1.0,
    job: str = "",
) -> "Issued":
    """A certificate of a task. It began or begins so many days from now."""
    begins = datetime.now(UTC) + timedelta(days=begins_in_days)
    who = Principal(role, job, index)
    made: Issued = _annex().issue(authority(ca), who, hosts, days, now=begins)
    return made


def write(folder: Path, files: "Issued", ca: str = "test CA") -> dict[str, Any]:
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
