"""Event files for TensorBoard: the one place that knows who writes them."""

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

log = logging.getLogger(__name__)


class SummaryWriter(Protocol):
    """What an Estimator asks of a writer; tensorboardX's and PyTorch's are that."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write a number."""

    def flush(self) -> Any:
        """Have what was written be there."""


class NoSummaries:
    """Writes nothing."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""


@cache
def summary_writer(log_dir: str) -> SummaryWriter:
    """The writer of this process for a directory; without tensorboardX one that writes nothing.

    Args:
        log_dir: A folder of this machine; to object stores nothing is written.
    """
    if "://" in log_dir:
        log.info("no event files are written to %s: it is no folder of this machine", log_dir)
        return NoSummaries()
    if find_spec("tensorboardX") is None:
        _say_once()
        return NoSummaries()
    import tensorboardX

    writer: SummaryWriter = tensorboardX.SummaryWriter(log_dir, write_to_disk=True)
    return writer


@cache
def _say_once() -> None:
    log.info("no event files are written; pip install 'windlass[tensorboard]' brings what does")
