"""A job's checkpoints: the values first, the manifest last; and which of them to go on from."""

import logging
from dataclasses import dataclass, replace

from ...core.checkpoint import (
    CheckpointInfo,
    CheckpointReader,
    Manifest,
    choose_intact,
    list_checkpoints,
    manifest_bytes,
    prune,
    remove_incomplete,
)
from ...core.checkpoint.directory import MANIFEST, commit_step, set_aside
from ...core.checkpoint.folder import Folder, remove_temporaries
from ...core.checkpoint.job_record import JobRecord, write_job_record
from ...core.checkpoint.manifest import digest
from ...core.checkpoint.storage import check_writable, open_model_dir, storage_error
from ...core.errors import CheckpointError
from ...core.process.events import event, own_task
from ...core.spans import measured, new_context
from .checkpoint_sources import (
    WHOLE,
    CheckpointSource,
    NewCheckpoint,
    NextSource,
    WholeOrDelta,
    Written,
)

log = logging.getLogger(__name__)

# -- Choice between whole checkpoints and deltas of a job. Pure: neither files nor a clock -----
# A delta is one of the last whole checkpoint, not of the one before it: to read it takes two
# checkpoints, one that is damaged or removed costs no other, and a ps has to know changes since
# one moment only. What it costs is that deltas grow until the next whole one.


@dataclass(frozen=True, slots=True)
class DeltaPolicy:
    """See the module.

    Attributes:
        whole_every: Number of checkpoints of which one is whole.
        base: Name of the last whole one that deltas may name, and digest of its manifest.
        deltas: Number of checkpoints since.
    """

    whole_every: int = 1
    base: tuple[str, str] | None = None
    deltas: int = 0

    def following(self, *, final: bool) -> WholeOrDelta:
        """Choose the kind of the next checkpoint; the last one of a job is whole."""
        if final or self.whole_every == 1:
            return WHOLE
        if self.base is None or self.deltas + 1 >= self.whole_every:
            return WholeOrDelta(may_be_base=True)
        return WholeOrDelta(base=self.base)

    def after(
        self, kind: WholeOrDelta, name: str, digest: str, manifest: Manifest
    ) -> "DeltaPolicy":
        """Make the policy once a checkpoint was written.

        Args:
            kind: Kind that it was to be.
            name: Name of the checkpoint.
            digest: Digest of its manifest.
            manifest: Manifest of the checkpoint. If a delta has whole parts, since a ps did not
                know what changed or too much had, a whole one is next.
        """
        if kind.may_be_base:
            return replace(self, base=(name, digest), deltas=0)
        if kind.base is None or _has_whole_parts(manifest):
            return replace(self, base=None, deltas=0)
        return replace(self, deltas=self.deltas + 1)


def _has_whole_parts(manifest: Manifest) -> bool:
    parts = manifest.base.parts if manifest.base is not None else {}
    return manifest.base is None or any(
        len(parts.get(name, ())) < table.parts for name, table in manifest.tables.items()
    )


class Checkpointer:
    """Checkpoints of one job. Used by one thread.

    Args:
        model_dir: Path or fsspec URL.
        source: Returns the source of the next checkpoint's values.
        keep: Number of complete checkpoints to keep.
        writer: The task that writes the manifests, for messages.
        whole_every: Number of checkpoints of which one is whole; those after it are deltas of it.

    Attributes:
        last: The checkpoint that was saved or chosen last.
        saved_pushes: Number of pushes that the ps had counted before it; 0: unknown.
    """

    def __init__(
        self,
        model_dir: str,
        source: NextSource,
        keep: int,
        writer: str = "the chief",
        whole_every: int = 1,
    ) -> None:
        self._writer = writer
        self._model_dir = model_dir
        self._folder = open_model_dir(model_dir)
        self._source = source
        self._keep = keep
        self._policy = DeltaPolicy(whole_every)
        self.last: CheckpointInfo | None = None
        self.saved_pushes = 0
        self._last_is_final = False

    def prepare(self) -> None:
        """Remove what a killed job left unfinished.

        Raises:
            StorageError: The model directory cannot be written.
        """
        check_writable(self._model_dir, self._writer)
        try:
            remove_temporaries(self._folder)
            for path in remove_incomplete(self._model_dir):
                removed = event("checkpoint.removed", path=path)
                log.warning("removed %s: an incomplete checkpoint", path, extra=removed)
        except OSError as error:
            raise storage_error(error, self._model_dir, self._writer) from error

    def record(self, record: JobRecord) -> None:
        """Write the record that a restart reads. From any thread, one at a time.

        Raises:
            StorageError: The model directory cannot be written.
        """
        try:
            write_job_record(self._folder, record)
        except OSError as error:
            raise storage_error(error, self._model_dir, self._writer) from error

    def try_servers(self) -> None:
        """Have every ps write a file to the model directory, and look for it here.

        Raises:
            ConfigurationError: A ps has no model directory.
            StorageError: A ps cannot write there, or its directory is another.
        """
        self.try_server(self._source())

    def try_server(self, source: CheckpointSource) -> None:
        """Try the model directory with the ps of one source."""
        try:
            source.try_model_dir(self._folder)
        except OSError as error:
            raise storage_error(error, self._model_dir, self._writer) from error

    def choose(self, *, verify: bool = True) -> CheckpointInfo | None:
        """Choose the newest checkpoint that is whole; None: there is none.

        Newer ones that are damaged are logged and renamed, so that no reader takes them.

        Args:
            verify: Whether to read all files; not where the ps hold the variables already.

        Raises:
            CheckpointError: All checkpoints are damaged.
            PeerLostError: A ps, or the file system, does not answer.
        """
        infos = list_checkpoints(self._model_dir)
        if not verify:
            self.last = infos[-1] if infos else None
            return self.last
        verifier = _Verifier(self._source(), self._folder)
        choice = choose_intact(infos, verifier)
        self.last = choice.chosen
        self._last_is_final = verifier.is_final
        for info, error in choice.damaged:
            try:
                kept = set_aside(self._model_dir, info.name)
            except OSError as failure:
                raise storage_error(failure, info.path, self._writer) from failure
            log.warning(
                "%s is damaged and is not used: %s. Going back to %s; the damaged one is kept as "
                "%s",
                info.path,
                error,
                choice.chosen.path if choice.chosen else "nothing",
                kept,
                extra=event("checkpoint.damaged", path=info.path, error=error),
            )
        return self.last

    def tell_resumed(self, record: JobRecord) -> None:
        """Log which checkpoint the job goes on from, and how many steps of ``record`` are lost."""
        step = self.last.global_step if self.last is not None else 0
        if self.last is not None:
            restored = event("checkpoint.restored", path=self.last.path, step=step)
            log.info("resuming from %s (global step %d)", self.last.path, step, extra=restored)
        if record.global_step > step:
            log.warning(
                "%d acknowledged steps are lost: the job had reached global step %d, at least, and "
                "%s",
                record.global_step - step,
                record.global_step,
                f"the last whole checkpoint is of step {step}"
                if self.last is not None
                else "saved no checkpoint",
                extra=event("steps.lost", steps=record.global_step - step),
            )

    def save(self, global_step: int, *, final: bool = False, changed: bool = False) -> str:
        """Save while training goes on; the checkpoint's path, empty if there is nothing to save.

        A checkpoint of the same step is not written again. A failed save is removed.

        Args:
            global_step: About the step that is saved.
            final: The job is complete, and the checkpoint is to say so.
            changed: Values were assigned since the last one, so the same step is saved again.

        Raises:
            RopewalkError: A ps is gone or cannot write.
            StorageError: The directory cannot be written, and that will not pass.
        """
        source = self._source()
        try:
            with measured("checkpoint", own_task() or self._writer, new_context()):
                return self._save(source, global_step, final=final, changed=changed)
        finally:
            source.release()

    def _save(
        self, source: CheckpointSource, global_step: int, *, final: bool, changed: bool
    ) -> str:
        kind = self._policy.following(final=final)
        step = source.take(global_step, kind)
        if step is None:
            return ""
        saved = self.last is not None and self.last.global_step == step and not changed
        if self.last is not None and saved and (self._last_is_final or not final):
            return self.last.path
        written: Written | None = None

        def write(name: str) -> Manifest | None:
            nonlocal written
            written = source.write(NewCheckpoint(self._folder, name, step, final, kind))
            return written.manifest if written is not None else None

        info = commit_step(self._model_dir, step, write, self._writer)
        if info is None:
            return ""
        self.last, self._last_is_final = info, final
        self.saved_pushes = written.pushes if written is not None else 0
        if written is not None and (kind.base or kind.may_be_base):
            text = manifest_bytes(written.manifest)
            self._policy = self._policy.after(kind, info.name, digest(text), written.manifest)
        try:
            prune(self._model_dir, self._keep)
        except OSError as error:
            log.warning("an old checkpoint could not be removed: %s", error)
        return info.path


class _Verifier:
    """Checks checkpoints and the whole ones that deltas need, each once.

    Args:
        source: Source that reads the files.
        model_dir: Directory of the checkpoints.

    Attributes:
        is_final: Whether the checkpoint that was checked last is that of a complete job.
    """

    def __init__(self, source: CheckpointSource, model_dir: Folder) -> None:
        self._source, self._model_dir = source, model_dir
        self._bases: dict[str, CheckpointError | None] = {}
        self.is_final = False

    def __call__(self, info: CheckpointInfo) -> None:
        reader = CheckpointReader(info.path)
        if reader.manifest.global_step != info.global_step:
            raise CheckpointError(
                f"{info.path}/{MANIFEST} is of global step {reader.manifest.global_step}: it "
                "belongs to another directory",
                path=info.path,
            )
        self.is_final = reader.manifest.final
        self._verify(info.name, reader.manifest)
        if reader.base is not None and reader.manifest.base is not None:
            name = reader.manifest.base.checkpoint
            if name not in self._bases:
                self._bases[name] = self._wrong(name, reader.base.manifest)
            if (wrong := self._bases[name]) is not None:
                raise CheckpointError(
                    f"{info.path} has what changed since {reader.base.path}, which is damaged: "
                    f"{wrong.message}",
                    path=info.path,
                    base=reader.base.path,
                ) from wrong

    def _wrong(self, name: str, manifest: Manifest) -> CheckpointError | None:
        try:
            self._verify(name, manifest)
        except CheckpointError as error:
            return error
        return None

    def _verify(self, name: str, manifest: Manifest) -> None:
        files = sorted({record.file for record in manifest.tensors} | set(manifest.files))
        self._source.verify(self._model_dir, name, files)
