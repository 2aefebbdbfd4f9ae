"""ClusterCoordinator: a program schedules functions, and workers run them."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ...core.errors import ConfigurationError
from ..strategies.parameter_server import ParameterServerStrategy
from .dispatcher import Dispatcher
from .per_worker import PerWorkerDataset, PerWorkerValue
from .remote_value import RemoteValue, fetch

_made: "weakref.WeakKeyDictionary[Any, ClusterCoordinator]" = weakref.WeakKeyDictionary()
_making = threading.Lock()


class ClusterCoordinator:
    """As ``tf.distribute.coordinator.ClusterCoordinator``.

    Runs in the chief's program. Workers are started without a program (``windlass worker``); a
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

    Raises:
        ValueError: It is no ParameterServerStrategy.
        ConfigurationError: This task is not the chief, or the cluster has no worker.
    """

    _dispatcher: Dispatcher

    def __new__(cls, strategy: Any) -> "ClusterCoordinator":
        """The coordinator of a strategy."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise ValueError(
                "only ParameterServerStrategy has a coordinator, and this is a "
                f"{type(strategy).__name__}"
            )
        with _making:
            found = _made.get(strategy)
            if found is None:
                found = super().__new__(cls)
                found._begin(strategy)
                _made[strategy] = found
            return found

    def _begin(self, strategy: ParameterServerStrategy) -> None:
        runtime = strategy.extended.runtime
        task = runtime.task
        if not task.is_chief:
            raise ConfigurationError(
                f"{task.task} is not the chief: the coordinator's program is the chief's, and "
                "workers are started without a program"
            )
        self._strategy = strategy
        self._dispatcher = Dispatcher(strategy)

    @property
    def strategy(self) -> ParameterServerStrategy:
        """As given."""
        return self._strategy

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Have some worker call a function; returns at once, or when the queue has room.

        Args:
            fn: Called on a worker. It may use the strategy, its variables and optimizers.
            args: Its arguments; a per-worker value becomes the worker's own.
            kwargs: Its keyword arguments.

        Raises:
            TypeError: ``fn`` cannot be called, or something cannot be sent.
            ValueError: An argument is a RemoteValue.
            Exception: What a closure raised that was scheduled before; then this one is not.
        """
        if not callable(fn):
            raise TypeError(f"schedule takes a function, not {fn!r}")
        return self._dispatcher.schedule(fn, tuple(args or ()), dict(kwargs or {}))

    def join(self) -> None:
        """Wait until every scheduled closure has been run.

        Raises:
            Exception: What a closure raised first; closures that had not begun are cancelled.
        """
        self._dispatcher.join()

    def done(self) -> bool:
        """Whether every scheduled closure has been run.

        Raises:
            Exception: What a closure raised first; closures that had not begun are cancelled.
        """
        return self._dispatcher.done()

    def fetch(self, val: Any) -> Any:
        """A nested structure with its remote values waited for and fetched."""
        return fetch(val)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """A dataset on every worker.

        Args:
            dataset_fn: Called on each worker, and again when one comes back; or a dataset.
        """
        make = dataset_fn if callable(dataset_fn) else _Constant(dataset_fn)
        number = self._dispatcher.add_resource(make)
        return PerWorkerDataset(number, self._dispatcher.add_iterator)

    def create_per_worker_values(self, value_fn: Callable[[], Any]) -> PerWorkerValue:
        """A value of every worker.

        Args:
            value_fn: Makes it; called on each worker, and again when one comes back.

        Raises:
            TypeError: It cannot be called, or cannot be sent.
        """
        if not callable(value_fn):
            raise TypeError(f"create_per_worker_values takes a function, not {value_fn!r}")
        return PerWorkerValue(self._dispatcher.add_resource(value_fn))

    def close(self) -> None:
        """Leave the workers. The end of the program does."""
        self._dispatcher.close()


class _Constant:
    """Returns one thing."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value
