"""Index of the worker of a coordinator that runs the calling closure."""

from contextvars import ContextVar

current_worker: ContextVar[int | None] = ContextVar("ropewalk_worker", default=None)


def experimental_get_current_worker_index() -> int:
    """Return the index of the worker that runs this closure or dataset function.

    As ``tf.distribute.coordinator.experimental_get_current_worker_index``.

    Raises:
        RuntimeError: No worker does.
    """
    index = current_worker.get()
    if index is None:
        raise RuntimeError(
            "experimental_get_current_worker_index is for closures and for the functions of "
            "create_per_worker_dataset, which a worker runs"
        )
    return index
