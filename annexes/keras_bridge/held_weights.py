"""Weights that the chief's program has set since its last step, where others train on meanwhile.

`EarlyStopping(restore_best_weights=True)` ends `fit` with `set_weights`, and a program may load the
best file after it. Asynchronous workers go on pushing to the same variables, so what the servers
have soon is something else. On the chief such weights therefore stay until it makes a step with
them: it evaluates, saves and exports them, and the servers are given them once more when its next
`fit` begins and before the job's last checkpoint (ADR 0080).
"""

import logging
from collections.abc import Iterable, Mapping

from ...core.arrays.dtypes import Array
from ...distribute.runtime import ClusterRuntime
from ...distribute.strategies.parameter_server import ParameterServerExtended
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable

log = logging.getLogger(__name__)


class HeldWeights:
    """Values that the chief's program has set, of all models of a strategy.

    Args:
        variables: All variables of the strategy that models have, by name.

    Attributes:
        others_were_told: Whether the other workers were told to end their training.
    """

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self._variables = variables
        self._values: dict[str, Array] = {}
        self._runtime: ClusterRuntime | None = None
        self._step = 0
        self.others_were_told = False

    def hold(self, values: Mapping[str, Array], runtime: ClusterRuntime) -> None:
        """Keep values, which the servers have been given once.

        Args:
            values: Values by name; no memory of the program's.
            runtime: Runtime of the job whose last checkpoint is to have them.
        """
        self._values.update(values)
        self.others_were_told = False
        self._step = runtime.global_step
        if self._runtime is None:
            self._runtime = runtime
            runtime.before_last_save.append(self._give_last)

    def among(self, names: Iterable[str]) -> dict[str, Array]:
        """Select the values of these variables that are held, by name."""
        return {name: self._values[name] for name in names if name in self._values}

    def release(self, names: Iterable[str]) -> None:
        """Let variables go on as the servers have them."""
        if self._values:
            for name in names:
                self._values.pop(name, None)

    def give_again(self, names: Iterable[str]) -> None:
        """Have the servers take those of some variables once more."""
        for name, value in self.among(names).items():
            self._variables[name].assign(value)

    def _give_last(self) -> None:
        if not self._values or self._runtime is None:
            return
        self.give_again(self._values)
        others_steps = self._runtime.global_step - self._step
        if others_steps > 0:
            log.log(
                logging.INFO if self.others_were_told else logging.WARNING,
                "the last checkpoint has the weights that the chief's program has set after its "
                "last step; the %d steps that other workers made meanwhile are not in them",
                others_steps,
            )


def runtime_of_chief(strategy: Strategy) -> ClusterRuntime | None:
    """Find the runtime of the chief of other workers that do not wait for it; None: this is
    another.
    """
    extended = strategy.extended
    if not (isinstance(extended, ParameterServerExtended) and extended.should_checkpoint):
        return None
    return extended.runtime if extended.num_input_pipelines > 1 else None
