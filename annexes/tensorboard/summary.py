"""``rw.summary``: scalars, histograms, images and texts for TensorBoard, as ``tf.summary`` has.

::

    writer = rw.summary.create_file_writer("runs/mnist")
    with writer.as_default(step=strategy):
        for batch in batches:
            loss = strategy.run(step, args=(batch,))
            rw.summary.scalar("loss", loss)

Every worker runs the same program, so by default only the chief writes (and an evaluator, which
runs a part of its own), and of its replicas the first one. The functions take arrays of any
framework, return whether they recorded something, and cost a worker that does not write next to
nothing: what they are given is not looked at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cluster.resolvers.launchers import environment_resolver
from ...cluster.resolvers.resolved import resolve
from ...cluster.spec import EVALUATOR
from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.public_face import public_getattr
from ...distribute.base.contexts import get_replica_context
from ...distribute.program_cluster import program_cluster
from ...distribute.strategies.default import get_strategy
from . import encoding
from .encoding import event_of, require_library
from .writer import EventWriter

__all__ = [
    "SummaryWriter",
    "create_file_writer",
    "create_noop_writer",
    "flush",
    "histogram",
    "hparams",
    "image",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
]

Step = Any
"""A number; or a function, variable or strategy that has one when a summary is written."""


class SummaryWriter:
    """A way for summaries to event files. Made by :func:`create_file_writer`; thread-safe.

    The file is made with the first summary, so a program may make a writer before its strategy.

    Args:
        logdir: Path or fsspec URL; None: nothing is written.
        chief_only: Whether other workers write nothing.
        max_queue: Maximum number of summaries that wait to be written.
        flush_s: Maximum time until they are in the file. Unit: seconds.
        suffix: Suffix of the file's name.
    """

    def __init__(
        self, logdir: str | None, *, chief_only: bool, max_queue: int, flush_s: float, suffix: str
    ) -> None:
        self.logdir = logdir
        self._chief_only = chief_only
        self._options = {"max_queue": max_queue, "flush_s": flush_s, "suffix": suffix}
        self._events: EventWriter | None = None
        self._opening = Lock()
        self._closed = False

    @cached_property
    def writes(self) -> bool:
        """Whether this task is one that writes."""
        return self.logdir is not None and (not self._chief_only or _writes_here())

    @contextmanager
    def as_default(self, step: Step = None) -> "Iterator[SummaryWriter]":
        """Write summaries here in the block, and what it calls.

        Args:
            step: Step of summaries recorded without one: a number, or a strategy, variable or
                function that gives one; None: the strategy's global step.
        """
        token = _default.set(_Default(self, step))
        try:
            yield self
        finally:
            _default.reset(token)

    def set_as_default(self, step: Step = None) -> None:
        """Write summaries of this thread here from now on; see :meth:`as_default`."""
        _default.set(_Default(self, step))

    def add(self, events: Sequence[bytes]) -> None:
        """Have events written; what comes after :meth:`close` is dropped.

        Raises:
            StorageError: The folder cannot be written; of the first events.
            ConfigurationError: It is no URL of a file system that is installed here.
        """
        if self._closed or self.logdir is None:
            return
        with self._opening:
            if self._events is None:
                self._events = EventWriter(self.logdir, **self._options)  # type: ignore[arg-type]
        for event in events:
            self._events.add(event)

    def flush(self) -> None:
        """Return when what was recorded is in the file.

        Raises:
            StorageError: It could not be written.
        """
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Write what was recorded, and end the file; errors as of :meth:`flush`."""
        self._closed = True
        if self._events is not None:
            self._events.close()


@dataclass(frozen=True, slots=True)
class _Default:
    writer: SummaryWriter
    step: Step


_default: ContextVar[_Default | None] = ContextVar("ropewalk_summary_writer", default=None)
_condition: ContextVar[Any] = ContextVar("ropewalk_record_if", default=True)


def create_file_writer(
    logdir: str,
    max_queue: int = 1000,
    flush_millis: int = 2000,
    filename_suffix: str = "",
    *,
    chief_only: bool = True,
) -> SummaryWriter:
    """Create a writer of event files in a folder, as ``tf.summary.create_file_writer``. As
    ``tf.summary.create_file_writer``.

    Args:
        logdir: Path or fsspec URL. On object stores every flush makes one more object, so flush
            rarely there.
        max_queue: Most summaries that wait to be written. Beyond, a call waits a second, then its
            summary is dropped, and the log says so.
        flush_millis: Longest time until they are in the file. Unit: milliseconds.
        filename_suffix: Ends the file's name.
        chief_only: Whether workers beside the chief write nothing. If they do, give each a folder
            of its own.

    Raises:
        MissingExtraError: tensorboardX is not installed.
        ValueError: ``max_queue`` or ``flush_millis`` is less than one.
    """
    if max_queue < 1 or flush_millis < 1:
        raise ValueError(f"max_queue={max_queue} and flush_millis={flush_millis} are to be >= 1")
    require_library()
    return SummaryWriter(
        str(logdir),
        chief_only=chief_only,
        max_queue=max_queue,
        flush_s=flush_millis / 1000,
        suffix=filename_suffix,
    )


def create_noop_writer() -> SummaryWriter:
    """Create a writer that writes nothing."""
    return SummaryWriter(None, chief_only=True, max_queue=1, flush_s=1.0, suffix="")


@contextmanager
def record_if(condition: bool | Callable[[], bool]) -> Iterator[None]:
    """Record summaries in the block only if this holds, as ``tf.summary.record_if``. As
    ``tf.summary.record_if``.
    """
    token = _condition.set(condition)
    try:
        yield
    finally:
        _condition.reset(token)


def should_record_summaries() -> bool:
    """Return whether a summary would be recorded here and now."""
    default = _default.get()
    if default is None or not default.writer.writes:
        return False
    condition = _condition.get()
    if not (condition() if callable(condition) else condition):
        return False
    replica = get_replica_context()
    return replica is None or replica.local_id == 0


def scalar(name: str, data: Any, step: Step = None) -> bool:
    """Record a number.

    Args:
        name: Tag of the number.
        data: A number, or an array of one.
        step: Position on the horizontal axis; None: the default writer's step.

    Returns:
        Whether it was recorded: there is a default writer, and this is a task that writes.

    Raises:
        ValueError: It is no single number, or no step is known.
    """

    def make() -> list[Any]:
        array = _array(data)
        if array.size != 1:
            raise ValueError(f"{name!r} is to be one number; it has the shape {array.shape}")
        return [encoding.scalars({name: float(array.reshape(()))})]

    return _record(make, step)


def histogram(name: str, data: Any, step: Step = None, buckets: int = 30) -> bool:
    """Record how numbers are distributed. NaN and infinities are left out.

    Args:
        name: Tag of the histogram.
        data: An array of any shape.
        step: Position on the horizontal axis; None: the default writer's step.
        buckets: Number of ranges of equal width in which they are counted.

    Returns:
        Whether it was recorded; not if there is no finite number.

    Raises:
        ValueError: ``buckets`` is less than one, or no step is known.
    """
    if buckets < 1:
        raise ValueError(f"a histogram has at least one bucket, got {buckets}")

    def make() -> list[Any]:
        summary = encoding.histogram(name, _array(data), buckets)
        return [] if summary is None else [summary]

    return _record(make, step)


def image(name: str, data: Any, step: Step = None, max_outputs: int = 3) -> bool:
    """Record pictures.

    Args:
        name: Tag of the pictures.
        data: Array, shape (pictures, height, width, channels) with 1, 3 or 4 channels: uint8, or
            floating-point numbers from 0 to 1.
        step: Position on the horizontal axis; None: the default writer's step.
        max_outputs: Maximum number of pictures recorded, the first ones.

    Returns:
        Whether they were recorded.

    Raises:
        ValueError: The shape is another, or no step is known.
        MissingExtraError: Pillow is not installed.
    """

    def make() -> list[Any]:
        pictures = _array(data)
        if pictures.ndim != 4 or pictures.shape[3] not in (1, 3, 4):
            raise ValueError(
                f"images {name!r} have the shape {pictures.shape}; it is to be (pictures, height, "
                "width, channels) with 1, 3 or 4 channels"
            )
        chosen = pictures[:max_outputs]
        if chosen.dtype != np.uint8:
            chosen = (np.clip(chosen.astype(np.float32), 0, 1) * 255 + 0.5).astype(np.uint8)
        tags = [name] if len(chosen) == 1 else [f"{name}/{i}" for i in range(len(chosen))]
        return [encoding.image(tag, picture) for tag, picture in zip(tags, chosen, strict=True)]

    return _record(make, step)


def text(name: str, data: str | Sequence[str], step: Step = None) -> bool:
    """Record a text, which TensorBoard shows as Markdown.

    Args:
        name: Tag of the text.
        data: The text, or its paragraphs.
        step: Position on the horizontal axis; None: the default writer's step.

    Returns:
        Whether it was recorded.

    Raises:
        ValueError: No step is known.
    """
    whole = data if isinstance(data, str) else "\n\n".join(data)
    return _record(lambda: [encoding.text(name, whole)], step)


def hparams(values: Mapping[str, Any], metrics: Sequence[str] = ()) -> bool:
    """Record the hyperparameters of a run, for TensorBoard's page that compares runs by them.

    Args:
        values: Numbers, texts and bools by name.
        metrics: Tags of scalars that the page shows beside them.

    Returns:
        Whether they were recorded.
    """
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
    }
    return _record(lambda: encoding.hparams(plain, metrics), 0)


def flush(writer: SummaryWriter | None = None) -> None:
    """Return when what was recorded is in the file.

    Args:
        writer: Writer to flush; None: the default's.

    Raises:
        StorageError: It could not be written.
    """
    default = _default.get()
    chosen = writer or (default.writer if default is not None else None)
    if chosen is not None:
        chosen.flush()


def _record(make: Callable[[], list[Any]], step: Step) -> bool:
    default = _default.get()
    if default is None or not should_record_summaries():
        return False
    number = _step_of(step if step is not None else default.step)
    summaries = make()
    default.writer.add([event_of(number, summary) for summary in summaries])
    return bool(summaries)


def _step_of(step: Step) -> int:
    if step is None:
        step = get_strategy()
        if not hasattr(step, "global_step"):
            runtime = program_cluster()
            if runtime is None:
                raise ValueError(
                    f"which step is this summary of? {type(step).__name__} counts none: give "
                    "step=, or as_default(step=…) a strategy, a variable or a function"
                )
            return runtime.global_step
    if hasattr(step, "global_step"):
        return int(step.global_step)
    return int(np.asarray(step() if callable(step) else step))


def _array(value: Any) -> Array:
    """Convert an array of any framework to one of the host; of a GPU's, in memory of its own."""
    if hasattr(value, "detach"):  # a tensor of PyTorch, which may want a gradient
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
    return to_host(value)


def _writes_here() -> bool:
    """Return whether this task is the chief, or the evaluator."""
    runtime = program_cluster()
    task = runtime.task if runtime is not None else resolve(environment_resolver())
    return task.is_chief or task.task.type == EVALUATOR


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.summary", globals())
