"""Values that workers hold: of a scheduled closure, or one for each worker."""

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn

import numpy as np

from ...core.terminal import Shown
from ..base.values import map_structure
from ..data.factories import as_dataset
from ..variables.variable import variable_creator_scope

# -- The value that a scheduled closure will return --------------------------------------------


class RemoteValueStatus(StrEnum):
    """The progress of a closure."""

    NOT_READY = "not ready"
    READY = "ready"
    ABORTED = "aborted"


class RemoteValue(Shown):
    """The result of a closure, in the future. As ``tf.distribute.experimental.coordinator``'s.

    The coordinator keeps it, so it can be fetched when the worker is gone.
    """

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._status = RemoteValueStatus.NOT_READY
        self._value: Any = None
        self._error: Exception | None = None

    def _shown(self) -> dict[str, Any]:
        if self._status is RemoteValueStatus.READY:
            return {"status": "ready", "value": self._value}
        if self._status is RemoteValueStatus.ABORTED:
            return {"status": "aborted", "error": self._error}
        return {"status": "not ready"}

    @property
    def status(self) -> RemoteValueStatus:
        """Progress of the closure. A closure that failed or was cancelled is aborted."""
        return self._status

    def fetch(self, timeout_s: float | None = None) -> Any:
        """Wait for the result; arrays are NumPy's.

        Args:
            timeout_s: Longest time to wait; None: as long as it takes. Unit: seconds.

        Raises:
            TimeoutError: It did not come in time.
            CancelledError: Another closure failed before this one began: schedule it again.
            Exception: What the closure raised.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"the closure was not done within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """Wait for the result, as :meth:`fetch`: values of closures live on the host."""
        return self.fetch()

    def __reduce__(self) -> Any:
        raise ValueError(
            "a RemoteValue cannot be given to a closure: fetch it first, and give the value"
        )

    # -- for the coordinator -----------------------------------------------------------------

    def settle(self, value: Any) -> None:
        """Set what the closure returned."""
        self._value, self._status = map_structure(_number, value), RemoteValueStatus.READY
        self._settled.set()

    def abort(self, error: Exception) -> None:
        """Set the error that the closure raised, or why it will not run."""
        self._error, self._status = error, RemoteValueStatus.ABORTED
        self._settled.set()


def _number(leaf: Any) -> Any:
    """Convert an array without axes to the number of NumPy's that TensorFlow's ``fetch`` gives."""
    return leaf[()] if isinstance(leaf, np.ndarray) and leaf.ndim == 0 else leaf


def fetch(value: Any) -> Any:
    """Fetch the remote values of a nested structure; the other leaves stay as they are."""
    return map_structure(
        lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, value
    )


# -- Things that each worker has one of: the coordinator holds a handle ------------------------
# On a worker a handle in a closure's arguments, or in what it captures, is that worker's own
# thing.


class PerWorkerValue:
    """A value of every worker, which a function makes there.

    Args:
        resource: Number of the resource.
    """

    def __init__(self, resource: int) -> None:
        self.resource = resource

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resource})"


class PerWorkerIterator(PerWorkerValue):
    """An iterator of every worker's dataset. Give it to a closure, which calls ``next`` on it.

    Args:
        resource: Number of the iterator.
        dataset: The dataset to iterate over; a worker that comes back begins it anew.
    """

    def __init__(self, resource: int, dataset: "PerWorkerDataset") -> None:
        super().__init__(resource)
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        """The dataset's."""
        return self._dataset.element_spec

    def __iter__(self) -> "PerWorkerIterator":
        return self

    def __next__(self) -> Any:
        raise NotImplementedError(
            "next of a per-worker iterator is for closures: give the iterator to schedule as an "
            "argument, and call next in the function"
        )


class PerWorkerDataset(PerWorkerValue):
    """A dataset of every worker.

    Args:
        resource: Number of the resource.
        make: Makes the dataset of a worker.
        make_iterator: Makes an iterator of it on every worker.
    """

    def __init__(
        self,
        resource: int,
        make: Callable[[], Any],
        make_iterator: Callable[["PerWorkerDataset"], PerWorkerIterator],
    ) -> None:
        super().__init__(resource)
        self._make = make
        self._make_iterator = make_iterator

    @property
    def element_spec(self) -> Any:
        """ArraySpec per leaf of an element, of a dataset that is made here.

        Raises:
            TypeError: It is no dataset.
        """
        dataset = self._make()
        return (
            dataset.element_spec
            if hasattr(dataset, "element_spec")
            else as_dataset(dataset).element_spec
        )

    def __iter__(self) -> PerWorkerIterator:
        """Make an iterator that begins on every worker at the start of its own dataset."""
        return self._make_iterator(self)


class DatasetFunction:
    """Makes the dataset of a worker; called there.

    Args:
        source: Source that the program gave: a function without arguments, or the dataset itself.
    """

    def __init__(self, source: Any) -> None:
        self._source = source

    def __call__(self) -> Any:
        """Make the dataset.

        Raises:
            ValueError: The function creates a variable.
        """
        if not callable(self._source):
            return self._source
        with variable_creator_scope(_refuse_variable):
            return self._source()


def _refuse_variable(
    next_creator: Callable[..., Any],  # noqa: ARG001 - what creators are given
    name: str | None = None,
    **_: Any,
) -> NoReturn:
    raise ValueError(
        f"Creating variables in `dataset_fn` is not allowed, and it creates {name or 'one'}: every "
        "worker calls the function, and again when it comes back. Create the variable in the "
        "coordinator's program, in `with strategy.scope():`"
    )
