"""The part that readers of features share: shapes of rows, and the end of their gradients."""

from typing import Any

from ..embedding.features.config import FeatureConfig

NEVER_APPLIED = "a step of the model's fit or train_on_batch applies them"


def rows_shape(feature: FeatureConfig, examples: Any) -> tuple[Any, ...]:
    """Compute the shape of a feature's combined rows.

    Args:
        feature: The feature.
        examples: Number of examples; None: not known yet.
    """
    length, dim = feature.max_sequence_length, feature.table.dim
    return (examples, length, dim) if length else (examples, dim)
