"""Writing checkpoints: every ps writes its part, the chief writes the manifest last."""

import datetime
import logging
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..client.ps.control import PsControl
from ..core.checkpoint import (
    CheckpointInfo,
    CheckpointReader,
    Manifest,
    VariableRecord,
    choose_intact,
    list_checkpoints,
    prune,
    remove_incomplete,
)
from ..core.checkpoint.directory import MANIFEST, new_checkpoint_path, set_aside
from ..core.checkpoint.file_systems import remove_temporaries
from ..core.checkpoint.job_record import JobRecord, read_job_record, write_job_record
from ..core.checkpoint.manifest import BlockRecord, manifest_bytes
from ..core.checkpoint.saved_part import SavedPart
from ..core.checkpoint.storage import (
    check_writable,
    open_model_dir,
    probe_name,
    storage_error,
)
from ..core.errors import CheckpointError, StorageError, WindlassError
from ..core.versions import own_versions

log = logging.getLogger(__name__)

_SAVE_TIMEOUT_S = 3600.0  # 100 GB to a slow disk; a lost ps ends the save sooner
_TRY_TIMEOUT_S = 60.0  # an object store, or a file server that wakes up


class Checkpointer:
    """Checkpoints of one job. Used by one thread.

    Args:
        model_dir: Path or fsspec URL.
        controls: One per ps, which has the same model directory.
        keep: Complete checkpoints kept.
        writer: Who writes the manifests, for messages.

    Attributes:
        last: The one that was saved or chosen last.
        saved_pushes: How many pushes the ps had counted before it was saved; 0: unknown.
    """

    def __init__(
        self, model_dir: str, controls: Sequence[PsControl], keep: int, writer: str = "the chief"
    ) -> None:
        self._writer = writer
        self._model_dir = model_dir
        self._folder = open_model_dir(model_dir)
        self._controls = list(controls)
        self._keep = keep
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
                log.warning("removed %s: an incomplete checkpoint", path)
        except OSError as error:
            raise storage_error(error, self._model_dir, self._writer) from error

    def read_record(self) -> JobRecord:
        """What the last job in this directory wrote down."""
        return read_job_record(self._folder)

    def record(self, record: JobRecord) -> None:
        """Write down what a restart has to know; a failure is logged."""
        try:
            write_job_record(self._folder, record)
        except OSError as error:
            log.warning("%s", storage_error(error, self._model_dir, self._writer))

    def try_servers(self) -> None:
        """Have every ps write a small file to its model directory, and find it in this one.

        Raises:
            ConfigurationError: A ps was given no model directory.
            StorageError: One cannot write there, or its directory is another.
        """
        for control in self._controls:
            probe = secrets.token_hex(8)
            theirs = control.try_model_dir(probe, timeout_s=_TRY_TIMEOUT_S)
            try:
                seen = self._folder.size(probe_name(probe)) is not None
                if seen:
                    self._folder.remove(probe_name(probe))
            except OSError as error:
                raise storage_error(error, self._model_dir, self._writer) from error
            if not seen:
                raise self._not_shared(control, probe_name(probe), theirs)

    def choose(self, *, verify: bool = True) -> CheckpointInfo | None:
        """The checkpoint to go on from: the newest that is whole. None: there is none.

        Every ps reads a part of it. Newer ones that are damaged are named, and renamed, so that
        no reader takes them for the newest.

        Args:
            verify: Whether to read it: not where the ps hold the variables already.

        Raises:
            CheckpointError: All are damaged.
            PeerLostError: A ps, or the file system, does not answer.
        """
        found = list_checkpoints(self._model_dir)
        if not verify:
            self.last = found[-1] if found else None
            return self.last
        choice = choose_intact(found, self._verify)
        self.last = choice.chosen
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
            )
        return self.last

    def _verify(self, info: CheckpointInfo) -> None:
        manifest = CheckpointReader(info.path).manifest
        if manifest.global_step != info.global_step:
            raise CheckpointError(
                f"{info.path}/{MANIFEST} is of global step {manifest.global_step}: it belongs to "
                "another directory",
                path=info.path,
            )
        self._last_is_final = manifest.final
        files = sorted({record.file for record in manifest.tensors} | set(manifest.files))
        count = len(self._controls)
        with ThreadPoolExecutor(count, thread_name_prefix="verify") as pool:
            shares = [(ps, files[n::count]) for n, ps in enumerate(self._controls)]
            checks = [
                pool.submit(ps.verify_shards, info.name, share, timeout_s=_SAVE_TIMEOUT_S)
                for ps, share in shares
                if share
            ]
            for check in checks:
                check.result()

    def save(
        self,
        global_step: int,
        *,
        final: bool = False,
        changed: bool = False,
        timeout_s: float = _SAVE_TIMEOUT_S,
    ) -> str:
        """Save while training goes on; returns the checkpoint's path. A failed save is removed.

        Args:
            global_step: If there is a checkpoint of this step, that one is returned.
            final: The job is complete; then there is to be a checkpoint that says so.
            changed: Values were assigned since the last one, so the same step is saved again.
            timeout_s: For one ps. Unit: seconds.

        Raises:
            WindlassError: A ps is gone or cannot write.
            StorageError: The manifest cannot be written, and that will not pass.
        """
        saved = self.last is not None and self.last.global_step == global_step and not changed
        if self.last is not None and saved and (self._last_is_final or not final):
            return self.last.path
        try:
            info = CheckpointInfo(global_step, new_checkpoint_path(self._model_dir, global_step))
        except OSError as error:
            raise storage_error(error, self._model_dir, self._writer) from error
        folder = self._folder.subfolder(info.name)
        try:
            with ThreadPoolExecutor(len(self._controls), thread_name_prefix="save") as pool:
                parts = list(
                    pool.map(
                        lambda ps: ps.save_shards(info.name, timeout_s=timeout_s), self._controls
                    )
                )
            if not any(part.shards for part in parts):
                self._discard(info)
                return ""
            for control, part in zip(self._controls, parts, strict=True):
                for name, record in part.files.items():
                    if folder.size(name) != record.num_bytes:
                        raise self._not_shared(control, f"{info.name}/{name}", "")
            folder.put(MANIFEST, manifest_bytes(_manifest(parts, global_step, final=final)))
        except OSError as error:
            self._discard(info)
            raise storage_error(error, info.path, self._writer) from error
        except WindlassError:
            self._discard(info)
            raise
        self.last, self._last_is_final = info, final
        self.saved_pushes = sum(part.pushes for part in parts)
        try:
            prune(self._model_dir, self._keep)
        except OSError as error:
            log.warning("an old checkpoint could not be removed: %s", error)
        return info.path

    def _not_shared(self, control: PsControl, file: str, theirs: str) -> StorageError:
        below = f" in its model directory {theirs}" if theirs else ""
        return StorageError(
            f"{control.task} at {control.address} wrote {file}{below}, and it is not where the "
            f"chief looks, in {self._model_dir}: all tasks need one model directory that they "
            "share, such as a network volume or an object store. Give each the same with "
            "--model-dir",
            task=control.task,
            path=self._model_dir,
        )

    def _discard(self, info: CheckpointInfo) -> None:
        try:
            self._folder.remove(info.name)
        except OSError as error:
            log.debug("nothing to remove at %s: %s", info.path, error)


def _manifest(parts: Sequence[SavedPart], global_step: int, *, final: bool) -> Manifest:
    variables: dict[str, VariableRecord] = {}
    blocks: list[BlockRecord] = []
    for ps, part in enumerate(parts):
        labels: dict[int, list[str]] = {}
        for saved in part.shards:
            labels.setdefault(saved.block, []).append(saved.shard.label)
            variable, rule = saved.shard.variable, saved.shard.rule
            known = variables.get(variable.name)
            variables[variable.name] = VariableRecord(
                shape=variable.shape,
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                updates=max(saved.updates, known.updates if known is not None else 0),
                rule=rule.model_dump(mode="json") if rule is not None else None,
            )
        for block, names in labels.items():
            applied = {str(task): mark for task, mark in part.applied.get(block, {}).items()}
            blocks.append(BlockRecord(ps=ps, shards=tuple(names), applied=applied))
    return Manifest(
        global_step=global_step,
        final=final,
        saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        windlass=own_versions().windlass,
        variables=variables,
        tensors=tuple(record for part in parts for record in part.tensors),
        files={name: record for part in parts for name, record in part.files.items()},
        blocks=tuple(blocks),
    )
