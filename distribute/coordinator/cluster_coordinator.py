"""ClusterCoordinator: a program schedules functions, and workers run them."""

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...core.arguments import ArgumentTypeError
from ...core.errors import ConfigurationError
from ...core.terminal import Shown
from ..base.interface import Arguments, Keywords, require_call_arguments
from ..data.dataset import Dataset
from ..strategies.parameter_server import ParameterServerStrategy
from .dispatcher import Dispatcher
from .remote_value import DatasetFunction, PerWorkerDataset, PerWorkerValue, RemoteValue, fetch

_made: "weakref.WeakKeyDictionary[Any, ClusterCoordinator]" = weakref.WeakKeyDictionary()
_making = threading.Lock()


class ClusterCoordinator(Shown):
    """A coordinator like ``tf.distribute.coordinator.ClusterCoordinator``.

    Runs in the chief's program. Workers are started without a program (``ropewalk worker``); a
    function that is scheduled runs on any of them, one at a time on each. There is one coordinator
    for a strategy: making it again gives the same one.

    ::

        coordinator = ClusterCoordinator(strategy)
        per_worker = coordinator.create_per_worker_dataset(dataset_fn)
        iterator = iter(per_worker)
        for _ in range(200):
            coordinator.schedule(step_fn, args=(iterator,))
        coordinator.join()

    A function is sent once, with what it captures as it is when it is first scheduled, as
    ``tf.function`` traces it once: what changes is given as an argument. Variables, per-worker
    values and hyperparameters of optimizers are those of now.

    Args:
        strategy: Keeps the variables.
        deadline_s: Longest time that a closure may run, where ``schedule`` does not say; None: as
            long as it takes. Unit: seconds.
        redispatch_after_s: A closure that takes longer is run by a second worker as well, if one
            has nothing to do; its updates are applied once, and the first answer counts. None: it
            is not. Unit: seconds.

    Raises:
        ValueError: It is no ParameterServerStrategy; an option is not positive, or given when the
            strategy has a coordinator already.
        ConfigurationError: This task is not the chief, the cluster has no worker, or a coordinator
            of another strategy.
    """

    _strategy: ParameterServerStrategy
    _dispatcher: Dispatcher
    _deadline_s: float

    def __new__(
        cls,
        strategy: Any,
        *,
        deadline_s: float | None = None,
        redispatch_after_s: float | None = None,
    ) -> "ClusterCoordinator":
        """Find or make the coordinator of a strategy."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise ValueError(
                "only ParameterServerStrategy has a coordinator, and this is a "
                f"{type(strategy).__name__}"
            )
        with _making:
            coordinator = _made.get(strategy)
            if coordinator is None:
                coordinator = super().__new__(cls)
                coordinator._begin(strategy, deadline_s, redispatch_after_s)
                _made[strategy] = coordinator
            elif deadline_s is not None or redispatch_after_s is not None:
                raise ValueError(
                    "the strategy has a coordinator already: give its options where it is made "
                    "first"
                )
            return coordinator

    def _begin(
        self,
        strategy: ParameterServerStrategy,
        deadline_s: float | None,
        redispatch_after_s: float | None,
    ) -> None:
        runtime = strategy.extended.runtime
        task = runtime.task
        if not task.is_chief:
            raise ConfigurationError(
                f"{task.task} is not the chief: the coordinator's program is the chief's, and "
                "workers are started without a program"
            )
        for other in _made.values():
            if other._strategy.extended.runtime is runtime and not other._dispatcher.is_closed:
                raise ConfigurationError(
                    "another strategy of this cluster has a coordinator, and workers serve one at "
                    "a time: close() that one first"
                )
        self._strategy = strategy
        self._deadline_s = _positive("deadline_s", deadline_s)
        again_after_s = _positive("redispatch_after_s", redispatch_after_s)
        self._dispatcher = Dispatcher(strategy, again_after_s, strategy.replicas_read)
        strategy.replicas_of_workers = self._dispatcher.replicas
        if not runtime.alone:
            runtime.progress.replicas = 0  # the workers compute

    def _shown(self) -> dict[str, Any]:
        return {"strategy": self._strategy}

    @property
    def strategy(self) -> ParameterServerStrategy:
        """Strategy of the coordinator."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Arguments | None = None,
        kwargs: Keywords = None,
        *,
        deadline_s: float | None = None,
    ) -> RemoteValue:
        """Have some worker call a function; returns at once, or when the queue has room.

        Args:
            fn: Called on a worker. It may use the strategy, its variables and optimizers.
            args: Arguments of the function; a per-worker value becomes the worker's own.
            kwargs: Keyword arguments of the function.
            deadline_s: Longest time that it may run on a worker; None: as the coordinator says. One
                that runs for longer fails with a DeadlineExceededError, and its worker's process is
                replaced. Unit: seconds.

        Raises:
            TypeError: ``fn`` cannot be called, or something cannot be sent.
            ArgumentTypeError: ``args`` is neither a list nor a tuple, or ``kwargs`` are no mapping.
            ValueError: An argument is a RemoteValue; or the deadline is not positive.
            Exception: What a closure raised that was scheduled before; then this one is not.
        """
        if not callable(fn):
            raise TypeError(f"schedule takes a function, not {fn!r}")
        limit_s = self._deadline_s if deadline_s is None else _positive("deadline_s", deadline_s)
        args = () if args is None else args
        require_call_arguments(args, kwargs, ArgumentTypeError)
        return self._dispatcher.schedule(fn, tuple(args), dict(kwargs or {}), limit_s)

    def join(self) -> None:
        """Wait until every scheduled closure has been run.

        Raises:
            Exception: What a closure raised first; closures that had not begun are cancelled.
        """
        self._dispatcher.join()

    def done(self) -> bool:
        """Return whether every scheduled closure has been run.

        Raises:
            Exception: What a closure raised first; closures that had not begun are cancelled.
        """
        return self._dispatcher.done()

    def fetch(self, val: Any) -> Any:
        """Fetch the remote values of a nested structure, and wait for them."""
        return fetch(val)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Create a dataset on every worker.

        Args:
            dataset_fn: Called on each worker, and again when one comes back; or a dataset, of which
                each worker gets a copy. What a :class:`~ropewalk.data.Dataset` shuffles comes in an
                order of each worker's own. It may not create variables: then closures that use the
                dataset raise a ValueError.

        Raises:
            TypeError: It can be gone through once only, or cannot be sent.
            ValueError: It is neither a function nor a dataset.
        """
        if not (callable(dataset_fn) or isinstance(dataset_fn, Iterable)):
            raise ValueError(
                "create_per_worker_dataset takes a function that makes a dataset, or a dataset, "
                f"not {dataset_fn!r}"
            )
        is_once = isinstance(dataset_fn, Dataset) and dataset_fn.node.once
        if is_once or isinstance(dataset_fn, Iterator):
            raise TypeError(
                f"create_per_worker_dataset was given a {type(dataset_fn).__name__} that can be "
                "gone through once, and every worker goes through its own: give a function that "
                "makes it"
            )
        return self._dispatcher.told.add_dataset(DatasetFunction(dataset_fn))

    def create_per_worker_values(self, value_fn: Callable[[], Any]) -> PerWorkerValue:
        """Create a value of every worker.

        Args:
            value_fn: Makes it; called on each worker, and again when one comes back.

        Raises:
            TypeError: It cannot be called, or cannot be sent.
        """
        if not callable(value_fn):
            raise TypeError(f"create_per_worker_values takes a function, not {value_fn!r}")
        return self._dispatcher.told.add_value(value_fn)

    def close(self) -> None:
        """Leave the workers. The end of the program does."""
        self._dispatcher.close()


def _positive(name: str, given_s: float | None) -> float:
    """Check a number of seconds; infinite if None was given."""
    if given_s is None:
        return math.inf
    if not given_s > 0:
        raise ValueError(f"{name}={given_s!r} is no positive number of seconds")
    return float(given_s)
