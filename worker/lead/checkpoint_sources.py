"""The values of a job's checkpoints: shards that ps write, or a synchronous program's variables."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Protocol

from ...client.ps.control import PsControl
from ...core import annexes
from ...core.checkpoint import CheckpointReader, Manifest
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import CutRecord, SavedPart, manifest_of_parts
from ...core.checkpoint.storage import probe_name
from ...core.errors import CutVoidError, MovedError, RopewalkError, StorageError
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.wire.cut_marks import Marks
from ...distribute.job_snapshots import JobSnapshots, Snapshot
from ...distribute.saved_variables import write_values
from ...server.chief.servicer import LockedJob
from .leadership import Led

_SAVE_TIMEOUT_S = 3600.0  # 100 GB to a slow disk; a lost ps ends the save sooner
_TRY_TIMEOUT_S = 60.0  # an object store, or a file server that wakes up


# -- Moments of all ps, of which a checkpoint has the values, as an annex takes them -----------
# Without that annex the ps save what they have, one after the other.


class TakenMoment(Protocol):
    """A moment that all ps have.

    Attributes:
        number: Number of the moment.
        global_step: The global step then.
        led: The shares that it is of, and who has their values.
    """

    number: int
    global_step: int
    led: Led

    @property
    def pushes(self) -> Marks:
        """Each worker's mark on the first share; its pushes are the same on all."""

    def record(self) -> CutRecord:
        """Make the record of it for a manifest."""


class Moments(Protocol):
    """Takes moments of all ps. Used by one thread at a time."""

    def take(self, *, with_slots: bool, may_be_base: bool = False) -> TakenMoment:
        """Take a moment.

        Raises:
            CutVoidError: It could not be taken.
        """

    def release(self, cut: TakenMoment) -> None:
        """Have the ps keep nothing of a moment any more."""

    def warn(self, error: RopewalkError) -> None:
        """Log why there is none."""


def moments_of(
    locked_job: LockedJob, who: Incarnation, leaders: Callable[[], Led], settings: Settings
) -> Moments | None:
    """Make what takes moments; None: no annex does.

    Args:
        locked_job: The job.
        who: The task that leads it.
        leaders: Returns each share with the ps that leads it.
        settings: Settings of the chief.
    """
    makers = [module.moments for module in annexes.at("taking_moments")]
    taken: Moments | None = makers[0](locked_job, who, leaders, settings) if makers else None
    return taken


# -- The values themselves: shards that ps write, or a synchronous program's variables ---------


@dataclass(frozen=True, slots=True)
class Written:
    """Values on disk that are no checkpoint yet.

    Attributes:
        manifest: Makes them a checkpoint.
        pushes: Number of pushes that the ps had counted before; 0: unknown.
    """

    manifest: Manifest
    pushes: int = 0


@dataclass(frozen=True, slots=True)
class WholeOrDelta:
    """The kind of checkpoint that is to be written.

    Attributes:
        base: Name of a whole checkpoint, and the digest of its manifest: what changed since it is
            enough. None: everything is to be written.
        may_be_base: Deltas of this checkpoint may follow.
    """

    base: tuple[str, str] | None = None
    may_be_base: bool = False

    @property
    def base_name(self) -> str:
        """Name of the base; empty: there is none."""
        return self.base[0] if self.base is not None else ""


WHOLE = WholeOrDelta()


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint that is to be written.

    Attributes:
        model_dir: Directory in which its folder will be.
        name: The folder's name.
        global_step: The step that the source has taken.
        final: The job is complete.
        kind: Whether what changed is enough; a source may write everything all the same.
    """

    model_dir: Folder
    name: str
    global_step: int
    final: bool
    kind: WholeOrDelta = WHOLE


class CheckpointSource(Protocol):
    """Used by one thread: :meth:`take`, then :meth:`write`. Folders are as the chief knows them."""

    def try_model_dir(self, model_dir: Folder) -> None:
        """Check that every other task that writes does so in the same model directory.

        Raises:
            OSError: The file system refused.
            ConfigurationError: A ps has no model directory.
            StorageError: A ps cannot write there, or its directory is another.
        """

    def verify(self, model_dir: Folder, checkpoint: str, files: Sequence[str]) -> None:
        """Read all files of a checkpoint but its manifest, and check every digest.

        Raises:
            CheckpointError: A file is damaged.
            PeerLostError: A ps, or the file system, does not answer.
        """

    def take(self, global_step: int, kind: WholeOrDelta = WHOLE) -> int | None:
        """Prepare to write, about step ``global_step``; the step it is, None: nothing to save."""

    def write(self, new: NewCheckpoint) -> Written | None:
        """Write the values; None: there are none.

        Raises:
            OSError: The file system refused.
            RopewalkError: A ps is gone or cannot write.
        """

    def release(self) -> None:
        """Keep nothing of what :meth:`take` has prepared, whether it was written or not."""


NextSource = Callable[[], CheckpointSource]
"""Returns the source of the next checkpoint."""


class PsShards:
    """Every ps writes its shards, below its own model directory, while training goes on.

    Args:
        controls: Controls of the ps, one each.
        leaders: Returns each share with the ps that leads it; None: each ps leads its own.
        moments: Takes one moment of all ps, which is then saved; None: the ps save what they have.
        process_of: Returns the process of a ps that has the variables; 0: any that leads a share.
    """

    def __init__(
        self,
        controls: Sequence[PsControl],
        leaders: Callable[[], Sequence[tuple[int, PsControl]]] | None = None,
        moments: Moments | None = None,
        process_of: Callable[[TaskId], int] = lambda task: 0,  # noqa: ARG005
    ) -> None:
        self._controls = list(controls)
        self._leaders = leaders or (lambda: [(each.task.index, each) for each in controls])
        self._moments = moments
        self._process_of = process_of
        self._cut: TakenMoment | None = None

    def try_model_dir(self, model_dir: Folder) -> None:
        """Have every ps write a small file, and find it; see :class:`CheckpointSource`."""
        for control in self._controls:
            probe = secrets.token_hex(8)
            theirs = control.try_model_dir(probe, timeout_s=_TRY_TIMEOUT_S)
            if model_dir.size(probe_name(probe)) is None:
                raise _not_shared(control, model_dir, probe_name(probe), theirs)
            model_dir.remove(probe_name(probe))

    def verify(self, model_dir: Folder, checkpoint: str, files: Sequence[str]) -> None:  # noqa: ARG002
        """Have every ps read a part; see :class:`CheckpointSource`."""
        count = len(self._controls)
        with ThreadPoolExecutor(count, thread_name_prefix="verify") as pool:
            shares = [(ps, files[number::count]) for number, ps in enumerate(self._controls)]
            checks = [
                pool.submit(ps.verify_shards, checkpoint, share, timeout_s=_SAVE_TIMEOUT_S)
                for ps, share in shares
                if share
            ]
            for check in checks:
                check.result()

    def take(self, global_step: int, kind: WholeOrDelta = WHOLE) -> int | None:
        """Take a cut, if that is possible now; its global step."""
        if self._moments is None:
            return global_step
        try:
            self._cut = self._moments.take(with_slots=True, may_be_base=kind.may_be_base)
        except CutVoidError as error:
            self._moments.warn(error)
            return global_step
        return self._cut.global_step

    def release(self) -> None:
        """Have the ps keep nothing; see :class:`CheckpointSource`."""
        if self._moments is not None and self._cut is not None:
            self._moments.release(self._cut)
        self._cut = None

    def _save(
        self, checkpoint: str, kind: WholeOrDelta
    ) -> tuple[list[tuple[int, PsControl]], list[SavedPart]]:
        """Have every ps write its part; who has written what."""
        cut = self._cut
        if cut is not None and self._moments is not None:
            try:
                return list(cut.led), self._save_parts(cut.led, checkpoint, kind, cut.number)
            except (CutVoidError, MovedError) as error:  # or a share has moved since the cut
                self._moments.warn(error)
                self.release()
        led = list(self._leaders())
        return led, self._save_parts(led, checkpoint, kind)

    def _save_parts(
        self,
        led: Sequence[tuple[int, PsControl]],
        checkpoint: str,
        kind: WholeOrDelta,
        cut: int = 0,
    ) -> list[SavedPart]:
        """Have each leader of a share write it; of a cut, or as it is now."""
        with ThreadPoolExecutor(len(led), thread_name_prefix="save") as pool:
            saving = [
                pool.submit(
                    copy_context().run,  # with the span of the save
                    control.save_shards,
                    checkpoint,
                    share=share,
                    cut=cut,
                    base=kind.base_name,
                    may_be_base=kind.may_be_base,
                    process=self._process_of(control.task),
                    timeout_s=_SAVE_TIMEOUT_S,
                )
                for share, control in led
            ]
            return [each.result() for each in saving]

    def write(self, new: NewCheckpoint) -> Written | None:
        """Have every ps write, and find its files; see :class:`CheckpointSource`."""
        led, parts = self._save(new.name, new.kind)
        if not any(part.shards for part in parts):
            return None
        folder = new.model_dir.subfolder(new.name)
        for (_, control), part in zip(led, parts, strict=True):
            for name, record in part.files.items():
                if folder.size(name) != record.num_bytes:
                    raise _not_shared(control, new.model_dir, f"{new.name}/{name}")
        cut = self._cut.record() if self._cut is not None else None
        manifest = manifest_of_parts(
            parts, new.global_step, final=new.final, cut=cut, base=new.kind.base
        )
        return Written(manifest, sum(part.pushes for part in parts))


class ProgramVariables:
    """The chief writes a copy of its program's variables, which are equal on all workers.

    Args:
        snapshots: Buffer into which the program hands over copies.
    """

    def __init__(self, snapshots: JobSnapshots) -> None:
        self._snapshots = snapshots
        self._taken: Snapshot | None = None

    def try_model_dir(self, model_dir: Folder) -> None:
        """Do nothing: no other task writes."""

    def verify(self, model_dir: Folder, checkpoint: str, files: Sequence[str]) -> None:
        """Read the files here; see :class:`CheckpointSource`."""
        CheckpointReader(model_dir.subfolder(checkpoint)).verify(files)

    def take(self, global_step: int, kind: WholeOrDelta = WHOLE) -> int | None:  # noqa: ARG002 - it is the program's
        """Wait for the end of the program's step."""
        self._taken = self._snapshots.take()
        return self._taken.global_step if self._taken is not None else None

    def release(self) -> None:
        """Drop the copy."""
        self._taken = None

    def write(self, new: NewCheckpoint) -> Written | None:
        """Write what was taken, always all of it: one task has it in memory."""
        taken, self._taken = self._taken, None  # memory for a copy of the model
        if taken is None or not taken.variables:
            return None
        folder = new.model_dir.subfolder(new.name)
        return Written(write_values(folder, taken.variables, new.global_step, final=new.final))


def source_of(
    servers: PsShards, snapshots: JobSnapshots | None, *, in_use: bool, alone: bool
) -> CheckpointSource:
    """Choose what a job saves now.

    Args:
        servers: The job's parameter servers.
        snapshots: Hands over the variables of a synchronous strategy; None: the job takes none.
        in_use: There are variables on the servers. They are saved if a program has both.
        alone: The program may have a strategy of either kind; until it has one, servers are asked.
    """
    if snapshots is None or in_use or (alone and not snapshots.is_adopted):
        return servers
    return ProgramVariables(snapshots)


def _not_shared(control: PsControl, model_dir: Folder, file: str, theirs: str = "") -> StorageError:
    below = f" in its model directory {theirs}" if theirs else ""
    return StorageError(
        f"{control.task} at {control.address} wrote {file}{below}, and it is not where the chief "
        f"looks, in {model_dir.url}: all tasks need one model directory that they share, such as a "
        "network volume or an object store. Give each the same with --model-dir",
        task=control.task,
        path=model_dir.url,
    )
