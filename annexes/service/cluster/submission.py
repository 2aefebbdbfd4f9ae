"""A driver's request: a job for a standalone cluster."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from ....core.errors import RefusedError
from ....core.wire.bounds import MAX_TEXT_BYTES

ALL = -1  # tasks: as many as there are nodes

_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_TASKS = 1024
_MAX_WORDS = 1000
_MAX_WORDS_BYTES = 256 * 1024  # of all words: jobs are kept, and listed in one answer
_MAX_PROGRAM_WORDS = 2
_MAX_GRACE_S = 86_400.0

# What a driver may set for its job; the rest is the cluster's: addresses, credentials, paths.
SETTINGS = frozenset(
    {
        "join_timeout_s", "wait_for_workers", "heartbeat_s", "lease_s", "reconnect_timeout_s",
        "request_timeout_s", "orphan_timeout_s", "drain_grace_s", "leave_grace_s",
        "nonfinite_gradients", "nonfinite_limit", "save_every_steps", "save_every_s",
        "save_whole_every", "keep_checkpoints", "log_level", "ps_replicas", "ps_shares",
        "rebalance",
    }
)  # fmt: skip


def new_id(name: str) -> str:
    """Make an id for a job that is called so."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:50] or "job"
    return f"{word}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as the driver submitted it.

    Attributes:
        id: Id from the driver, so that asking twice begins one job.
        name: Name for people.
        digest: Digest of the package with the program; empty: the program stays with the driver.
        program: ``("train.py",)`` or ``("-m", "package.module")``.
        arguments: Arguments of the program.
        workers: Number of workers; :data:`ALL`: one on each node for workers.
        ps: Number of parameter servers, in the same way.
        coordinator: The chief alone runs the program; workers run what it schedules.
        detached: Whether it goes on without its driver.
        grace_s: Longest time that the driver of a job that is not detached may be silent. Unit:
            seconds.
        settings: Settings of all tasks, by name.
        model: Folder of the model below the cluster's; empty: the id. A job continues from what
            another one has left there.
        owner: Name of the submitter, for people.
    """

    id: str
    name: str = ""
    digest: str = ""
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    workers: int = ALL
    ps: int = ALL
    coordinator: bool = False
    detached: bool = False
    grace_s: float = 30.0
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            RefusedError: Something in it is not possible.
        """
        if not _ID.fullmatch(self.id):
            raise RefusedError(
                f"a job's id cannot be {self.id[:70]!r}: up to 64 letters, digits, '-', '_' and "
                "'.', a letter or digit first and last"
            )
        if self.model and not _ID.fullmatch(self.model):
            raise RefusedError(
                f"{self.id}: a model's folder cannot be {self.model[:70]!r}: "
                "it is below the cluster's, and named as a job's id is (often by one)"
            )
        if self.digest and not _DIGEST.fullmatch(self.digest):
            raise RefusedError(f"{self.id}: the package has no SHA-256 digest in hex")
        for what, count in (("workers", self.workers), ("ps", self.ps)):
            if not ALL <= count <= _MAX_TASKS:
                raise RefusedError(f"{self.id}: {count} {what}; there can be 0 to {_MAX_TASKS}")
        if self.is_driven_from_outside and self.detached:
            raise RefusedError(f"{self.id}: a program that runs at its driver cannot be detached")
        if not self.is_driven_from_outside and not self.digest:
            raise RefusedError(f"{self.id}: the program has no package")
        words = (*self.program, *self.arguments)
        too_long = any(len(word.encode()) > MAX_TEXT_BYTES or "\0" in word for word in words)
        if len(words) > _MAX_WORDS or too_long or sum(map(len, words)) > _MAX_WORDS_BYTES:
            raise RefusedError(
                f"{self.id}: a command line has up to {_MAX_WORDS} words of {MAX_TEXT_BYTES} "
                f"bytes, {_MAX_WORDS_BYTES} together"
            )
        if len(self.program) > _MAX_PROGRAM_WORDS:
            raise RefusedError(f"{self.id}: a program is a file, or -m and a module")
        if not 0 < self.grace_s <= _MAX_GRACE_S:
            raise RefusedError(
                f"{self.id}: a driver may be silent for up to {_MAX_GRACE_S:g} s, "
                f"not {self.grace_s:g}"
            )
        if foreign := sorted(set(self.settings) - SETTINGS):
            raise RefusedError(
                f"{self.id}: {', '.join(foreign)} cannot be set by a job; these can: "
                f"{', '.join(sorted(SETTINGS))}"
            )
        if long := [name for name, said in self.settings.items() if len(said) > MAX_TEXT_BYTES]:
            raise RefusedError(f"{self.id}: {min(long)} is longer than {MAX_TEXT_BYTES} bytes")

    @property
    def folder(self) -> str:
        """Folder of the model, below the cluster's."""
        return self.model or self.id

    @property
    def shares_move(self) -> bool:
        """Whether its settings say that shares move; see :attr:`Settings.shares_move`."""
        said = self.settings
        is_said = said.get("ps_replicas", "1") not in ("", "1")
        return is_said or said.get("ps_shares", "0") not in ("", "0")

    @property
    def is_driven_from_outside(self) -> bool:
        """Whether the chief's program runs at the driver."""
        return not self.program
