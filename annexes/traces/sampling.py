"""A choice of steps to trace: a share of all at random, and the next ones somebody asks for."""

import math
import random
import threading
from collections.abc import Callable

from ...core.spans import Context
from ...core.step_trace import StepTrace


class AskedSteps:
    """Steps that somebody waits for.

    Args:
        count: Number of steps.
    """

    def __init__(self, count: int) -> None:
        self.left = count
        self._traces: list[Context] = []
        self._all_there = threading.Event()

    def take(self, context: Context) -> None:
        """Take the trace of a step."""
        self._traces.append(context)
        self.left -= 1
        if not self.left:
            self._all_there.set()

    def wait(self, timeout_s: float) -> list[Context]:
        """Wait for all; returns those that are there in time."""
        self._all_there.wait(timeout_s)
        return list(self._traces)


class Sampler:
    """Chooses the steps of a task at random; see :class:`~ropewalk.core.step_trace.StepSampler`.

    The distance to the next one is drawn, not each step, so one that is not sampled costs a
    subtraction. Drawn, since every hundredth step may be the one that saves.

    Args:
        task: Short name of the task.
        share: Share of the steps, from 0 to 1.
        tell: Called with the place of each sampled step that has ended.
        random_: Draws a number in [0, 1).
    """

    def __init__(
        self,
        task: str,
        share: float,
        tell: Callable[[Context], None] = lambda context: None,  # noqa: ARG005
        random_: Callable[[], float] = random.random,
    ) -> None:
        self.task = task
        self._share, self._tell, self._random = share, tell, random_
        self._left = self._distance()
        self._asked: tuple[AskedSteps, ...] = ()
        self._lock = threading.Lock()  # for who asks: the steps' thread reads one tuple

    def _distance(self) -> float:
        """Draw the number of steps to the next sampled one."""
        if not self._share:
            return math.inf
        if self._share == 1:
            return 1
        return 1 + int(math.log(1 - self._random()) / math.log(1 - self._share))

    def ask(self, count: int) -> AskedSteps:
        """Have the next steps traced. From any thread; :meth:`forget` must follow."""
        asked = AskedSteps(count)
        with self._lock:
            self._asked = (*self._asked, asked)
        return asked

    def forget(self, asked: AskedSteps) -> None:
        """Trace no more steps for this."""
        with self._lock:
            self._asked = tuple(each for each in self._asked if each is not asked)

    def next_is_sampled(self) -> bool:
        """Return whether the next step is traced."""
        self._left -= 1
        if is_drawn := self._left <= 0:
            self._left = self._distance()
        return is_drawn or any(each.left for each in self._asked)

    def ended(self, trace: StepTrace) -> None:
        """Note a step that has ended."""
        self._tell(trace.context)
        for each in self._asked:
            if each.left:
                each.take(trace.context)
