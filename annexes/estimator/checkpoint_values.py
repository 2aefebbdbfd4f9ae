"""Values of a checkpoint in a process that trains, for a while, and copies of what it trains."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...distribute.checkpoint import Checkpoint
from ...distribute.saved_variables import saved_value
from ...distribute.variables.variable import Variable
from .building import Registry
from .saving import has_value, shared_values

_COPIES = "evaluated"


@contextmanager
def with_checkpoint_values(registry: Registry) -> Iterator[None]:
    """Let the variables of a strategy have other values in the block than those they train with.
    Slots stay as they are.

    Args:
        registry: Registry of the strategy.
    """
    if registry.live_step is None:
        yield
        return
    before = {
        name: saved_value(variable)
        for name, variable in registry.variables.items()
        if has_value(variable)
    }
    try:
        yield
    finally:
        for name, value in before.items():
            registry.variables[name].assign(value)


def write_copy(model_dir: str, variables: Mapping[str, Variable], global_step: int) -> str:
    """Write the values that a job trains as of now, without slots, beside its checkpoints.

    The job writes its own when it is time, and at its end; what this process wants to evaluate now
    is not there yet. Only the newest copy is kept.

    Returns the path.

    Args:
        model_dir: Model directory of the job.
        variables: Variables by name. What replicas count for themselves is left out: all workers
            would have to read it together.
        global_step: The global step, as far as this task knows.
    """
    kept = list(shared_values(variables).values())
    return Checkpoint(kept, keep=1).save(f"{model_dir}/{_COPIES}", global_step)
