"""Summaries as tensorboardX encodes them: the one module that knows it.

It is loaded when the first summary is made, since it imports PyTorch where that is installed.
tensorboardX's own writers are not used: their queue is a pipe that ``flush`` does not wait for, and
a disk that is full ends their thread without a word (ADR 0030).
"""

import struct
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import MissingExtraError

_EXTRA = "tensorboard"
FILE_VERSION = "brain.Event:2"


def require_library() -> None:
    """See whether tensorboardX is there, without loading it.

    Raises:
        MissingExtraError: It is not installed; says which extra to install.
    """
    if find_spec("tensorboardX") is None:
        raise _missing("tensorboardX", "summaries for TensorBoard need")


def event_of(step: int, summary: Any, wall_time: float | None = None) -> bytes:
    """Serialize a summary as an event.

    Args:
        step: Step on the horizontal axis.
        summary: Summary made by a function of this module.
        wall_time: Seconds since the epoch; None: now.
    """
    from tensorboardX.proto.event_pb2 import Event

    when = time.time() if wall_time is None else wall_time
    return bytes(Event(wall_time=when, step=step, summary=summary).SerializeToString())


def version_event() -> bytes:
    """Make the event with which a file begins."""
    from tensorboardX.proto.event_pb2 import Event

    return bytes(Event(wall_time=time.time(), file_version=FILE_VERSION).SerializeToString())


def record_of(event: bytes) -> bytes:
    """Wrap an event as files have it: TFRecord's length and checksums around it."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(event))
    sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, event)]
    return b"".join((length, sums[0], event, sums[1]))


def scalars(values: Mapping[str, float]) -> Any:
    """Make one summary of numbers by tag."""
    from tensorboardX.proto.summary_pb2 import Summary

    return Summary(
        value=[Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
    )


def histogram(tag: str, values: Array, buckets: int) -> Any | None:
    """Make a histogram of the finite ones of ``values``; None: there are none.

    Args:
        tag: Name of the histogram.
        values: Numbers, of any shape.
        buckets: Most buckets, of one width.
    """
    from tensorboardX import summary

    flat = np.asarray(values, np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    return summary.histogram(tag, finite, bins=buckets) if finite.size else None


def image(tag: str, pixels: Array) -> Any:
    """Make a picture, as PNG.

    Args:
        tag: Name of the picture.
        pixels: uint8 array, shape (height, width, channels) with 1, 3 or 4 channels.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    from tensorboardX import summary

    try:
        return summary.image(tag, pixels, dataformats="HWC")
    except ImportError as error:
        raise _missing("pillow", "images in summaries need") from error


def text(tag: str, markdown: str) -> Any:
    """Make a text, which TensorBoard shows as Markdown."""
    from tensorboardX import summary

    return summary.text(tag, markdown)


def hparams(values: Mapping[str, Any], metrics: Sequence[str]) -> list[Any]:
    """Make the hyperparameters of a run, for TensorBoard's page of that name.

    Args:
        values: Numbers, texts and bools by name.
        metrics: Tags of scalars that its table shows.
    """
    from tensorboardX import summary

    return list(summary.hparams(dict(values), dict.fromkeys(metrics)))


def _missing(package: str, what: str) -> MissingExtraError:
    return MissingExtraError(
        f"{what} {package}, which is not installed: pip install 'ropewalk[{_EXTRA}]'",
        module=package,
        extra=_EXTRA,
    )
