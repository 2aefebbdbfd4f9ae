"""Optimizers of whole rows, for growing tables alone."""

from ....core.rules import row_rules as rules
from ....distribute.optimizer import Optimizer, Rate


class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row, as TorchRec's ``EXACT_ROWWISE_ADAGRAD``.

    See :class:`~ropewalk.core.rules.row_rules.RowwiseAdagrad`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        *,
        clipvalue: float | None = None,
    ) -> None:
        super().__init__(
            rules.RowwiseAdagrad,
            learning_rate=learning_rate,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=epsilon,
            clipvalue=clipvalue,
        )


class GroupFtrl(Optimizer):
    """FTRL with a group lasso over each row, which makes whole rows zero.

    See :class:`~ropewalk.core.rules.row_rules.GroupFtrl`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        group_regularization_strength: float = 0.0,
        beta: float = 0.0,
        *,
        clipvalue: float | None = None,
    ) -> None:
        super().__init__(
            rules.GroupFtrl,
            learning_rate=learning_rate,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            group_regularization_strength=group_regularization_strength,
            beta=beta,
            clipvalue=clipvalue,
        )
