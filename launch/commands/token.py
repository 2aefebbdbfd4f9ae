"""``ropewalk token``: tokens that say who a task is."""

import os
import secrets
from pathlib import Path
from typing import IO

import click

from ...cluster.access import ROLES, TASK_ROLES, Principal
from ...core.errors import ConfigurationError
from ..screen.plain import echo

_DAY_S = 24 * 3600


@click.group("token")
def token_command() -> None:
    """Make tokens for tasks, and show what they say."""


@token_command.command("new")
@click.option("--job", required=True, help="Id of the job, as the tasks' --job-id.")
@click.option("--role", required=True, type=click.Choice(ROLES), help="What the bearer may do.")
@click.option("--index", type=int, help="Of the task. Left out: any task of the role.")
@click.option("--days", default=30.0, show_default=True, help="How long the token holds.")
@click.option(
    "--key", "key_file", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The private key that signs, made if it is not there; its public key goes to KEY.pub.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path),
    help="Where the token goes, readable by you alone. Default: it is printed.",
)  # fmt: skip
def new_command(
    job: str, role: str, index: int | None, days: float, key_file: Path, out: Path | None
) -> None:
    """Make a token.

    Keep KEY where you make tokens. Servers need KEY.pub (--token-keys), each task its own token
    (--token-file).
    """
    from ...net.auth.proof import read_secret
    from ...net.auth.token import new_keys, public_key_of, sign_token

    who = Principal(role, job, index)
    if days <= 0:
        raise ConfigurationError(f"--days {days:g}: a token holds for more than 0 days")
    public_file = key_file.with_name(f"{key_file.name}.pub")
    try:
        if not key_file.exists() and _write(key_file, new_keys()[0], 0o600, replace=False):
            echo(f"made the key {key_file}; its public key is {public_file}", err=True)
        key = read_secret(key_file, "the key that signs tokens").encode()
        if not public_file.exists():
            _write(public_file, public_key_of(key), 0o644)
        token = sign_token(key, who, days * _DAY_S)
        if out is None:
            echo(token)
            return
        _write(out, f"{token}\n".encode(), 0o600)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror or error}") from error
    echo(f"{out}: {who}, holds for {days:g} days", err=True)


@token_command.command("show")
@click.argument("file", type=click.File("r"))
def show_command(file: IO[str]) -> None:
    """Show what the token in FILE says, and until when it holds; - reads standard input.

    The signature is not checked.
    """
    import datetime
    import time

    from ...net.auth.token import claims_of

    claims = claims_of(file.read().strip())
    role, job, index = claims.get("role", "?"), claims.get("job", "any"), claims.get("index")
    echo(f"role   {role}")
    echo(f"job    {job}")
    if role in TASK_ROLES:
        echo(f"index  {'any' if index is None else index}")
    for name, claim in (("made", "iat"), ("until", "exp")):
        if isinstance(claims.get(claim), int | float):
            moment = datetime.datetime.fromtimestamp(claims[claim], datetime.UTC)
            over = " (expired)" if claim == "exp" and claims[claim] < time.time() else ""
            echo(f"{name:6} {moment:%Y-%m-%d %H:%M:%S} UTC{over}")


def _write(path: Path, data: bytes, mode: int, *, replace: bool = True) -> bool:
    """Write a file, whole and with its mode from the first moment; whether it was this call."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if replace:
            beside.rename(path)
            return True
        os.link(beside, path)
    except FileExistsError:
        return False  # another process was first
    finally:
        beside.unlink(missing_ok=True)
    return True
