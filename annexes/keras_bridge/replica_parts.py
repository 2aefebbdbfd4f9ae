"""Division of a batch and a model's state among the replicas of a process. Pure.

Source of the rule for batches: tf.distribute, whose ``RebatchDataset`` cuts each global batch into
parts of equal length, rounded up, so that the last ones may be short or empty.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from ...core.errors import ConfigurationError
from ...core.terminal import counted

_SEED_STEP = 1_013_904_223  # odd and large: no two replicas come to the same numbers by counting
_SEEDS = 2**31 - 1

Combination = Literal["sum", "mean", "first"]
"""Combination by which the values that replicas made of one variable become one."""


def part_bounds(examples: int, replicas: int) -> list[tuple[int, int]]:
    """Compute where each replica's examples begin and end; of a short batch some have none."""
    size = -(-examples // replicas)
    return [(min(i * size, examples), min((i + 1) * size, examples)) for i in range(replicas)]


def combination(aggregation: str | None, *, is_float: bool) -> Combination:
    """Decide what becomes of a variable that the model changes while it is called.

    Args:
        aggregation: Aggregation that Keras' variable says.
        is_float: Whether it has floating-point numbers.

    Returns:
        ``sum``: what all replicas have added (states of metrics); ``mean``: weighted by examples
        (averages of batch norm); ``first``: the first replica's (seed generators, counters).
    """
    if aggregation == "sum":
        return "sum"
    if aggregation == "only_first_replica":
        return "first"
    return "mean" if is_float or aggregation == "mean" else "first"


def seed_offsets(replicas: int) -> list[int]:
    """Compute what each replica adds to the seed of a generator; the first draws as one device
    does.
    """
    return [replica * _SEED_STEP % _SEEDS for replica in range(replicas)]


def device_numbers(
    devices: Sequence[tuple[str, int]], there: Mapping[str, int], strategy: str, framework: str
) -> list[tuple[str, int]]:
    """Find the framework's devices for a strategy's.

    Logical CPU devices share those that the framework has; a GPU has to be there.

    Args:
        devices: Device of each replica: ``CPU`` or ``GPU``, and its number.
        there: Number of the framework's devices of each kind.
        strategy: Name of the strategy, for messages.
        framework: Name of the framework, for messages.

    Raises:
        ConfigurationError: The framework has no GPU of such a number.
    """
    numbers = []
    for kind, number in devices:
        count = there.get(kind, 0)
        if kind == "CPU" and count:
            numbers.append((kind, number % count))
            continue
        if number >= count:
            raise ConfigurationError(
                f"{strategy} has a replica on {kind}:{number}, and {framework}, on which Keras "
                f"runs, has {counted(count, f'{kind} device')} here; give the "
                f"strategy devices that both have, or install {framework} for GPUs"
            )
        numbers.append((kind, number))
    return numbers
