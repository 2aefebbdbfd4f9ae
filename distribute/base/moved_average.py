"""The change that a step of one worker makes to a moving average that all workers share.

A layer that keeps an average of its batches (batch norm) makes ``after = (1 - decay) * before +
decay * x`` of its copy, where ``x`` is of the batch. Steps of other workers have changed the shared
value in the meantime, so neither ``after`` nor ``after - before`` is right for it: the one takes
back what the others have added, and the other adds up differences from values that are no more,
which overshoots, below zero for a variance, and diverges with many workers. What is right needs no
``x``: the shared value becomes ``(1 - decay) * shared + after - (1 - decay) * before``, which is
``(1 - decay) * shared + decay * x``. So the steps of all workers count as if one process had made
them one after another, however old the copies were that they began with.

A decay that is larger than the layer's is safe, too: the result lies between the shared value, the
copy and ``x``. A decay of 0 adds differences up, which is right for a counter.
"""

from typing import NamedTuple

import numpy as np

from ...core.arrays.dtypes import Array


class MovedAverage(NamedTuple):
    """An average before and after a step.

    Attributes:
        before: Average as this worker had it; array of any shape, on the host. Where it is
            ``after``, too, the layer has not computed.
        after: Average as its step left it, of the same shape and dtype.
        decay: The weight of the step's own batches in ``after``, in [0, 1]; of a counter 0.
    """

    before: Array
    after: Array
    decay: float

    def added(self) -> Array:
        """Compute what is added to ``(1 - decay)`` of the shared value; of the same shape and
        dtype.
        """
        kept = self.before if not self.decay else (1 - self.decay) * self.before
        return np.asarray(self.after - kept)

    def on(self, shared: Array) -> Array:
        """Compute the shared value after the step; one that has not computed leaves it as it is."""
        if np.array_equal(self.before, self.after):
            return shared
        kept = shared if not self.decay else (1 - self.decay) * shared
        return np.asarray(kept + self.added())
