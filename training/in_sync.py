"""Number of workers that make their steps together, and the worker whose copies of state count."""

from ..distribute.strategies.strategy import Strategy


def workers_in_sync(strategy: Strategy) -> int:
    """Count the workers whose steps are one; 1: this one alone, be it with several replicas."""
    return strategy.extended.num_replicas_in_sync // len(strategy.extended.replica_devices)


def copy_counts(strategy: Strategy) -> bool:
    """Return whether this worker's copy counts for the job, as of an optimizer's state.

    Workers in sync have the same copy, and all push it; of asynchronous workers the chief's counts.
    """
    return bool(strategy.extended.should_checkpoint) or workers_in_sync(strategy) > 1
