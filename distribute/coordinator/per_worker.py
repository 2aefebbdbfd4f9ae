"""Things that each worker has one of: the coordinator holds a handle.

On a worker a handle in a closure's arguments, or in what it captures, is that worker's own thing.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from ..data.factories import as_dataset
from ..variables.variable import variable_creator_scope


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
