"""The end of ``fit`` on the other workers where the chief's ends with weights of its own.

Asynchronous workers make all of their epochs, whatever the chief does. But where the chief's
program has set weights after its last step (``EarlyStopping(restore_best_weights=True)`` does),
what others train from then on would be thrown away. So the chief says in a variable how many of its
``fit`` have ended in this way, and the others look at it now and then: they end theirs of that
number, and those before it. Which of them are to end goes by their number, so that a worker that is
late, or was started again, catches up.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...distribute.base.reductions import VariableAggregation
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from .frameworks import keras

log = logging.getLogger(__name__)

_LOOK_S = 1.0  # between two looks, of which each is a small round trip


class FitEnd:
    """The number of the chief's last ``fit`` that has ended the others'.

    Args:
        strategy: Strategy of asynchronous workers.
        name: Name of the variable.
        is_chief: Whether this worker is the one that says it.
    """

    def __init__(self, strategy: Strategy, name: str, *, is_chief: bool) -> None:
        with strategy.scope():
            self._ended: Variable = Variable(
                np.zeros((), np.int64),
                name=name,
                trainable=False,
                aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._told = -1
        if is_chief:  # of a job that resumes: another program's
            self.tell(0)

    def tell(self, number: int) -> None:
        """End the ``fit`` of this number, and those before it, on the other workers."""
        if number != self._told:
            self._told = number
            self._ended.assign(number)

    def now(self) -> int:
        """Read the number, by a round trip."""
        return int(self._ended.read_value())


class EndsWithChief(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends ``fit`` on another worker than the chief.

    Args:
        find: Returns what the chief says it in; None: nothing is shared yet.
        number: Number of this ``fit`` among those of its model.
        clock: Seconds that go on.
    """

    def __init__(
        self,
        find: Callable[[], FitEnd | None],
        number: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._find, self._number, self._clock = find, number, clock
        self._next = clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Look, if it is time."""
        now, end = self._clock(), self._find()
        if end is None or now < self._next:
            return
        self._next = now + _LOOK_S
        if end.now() >= self._number:
            log.info(
                "fit ends here: that of the chief has ended with weights that its program has set, "
                "such as the best ones"
            )
            self.model.stop_training = True
