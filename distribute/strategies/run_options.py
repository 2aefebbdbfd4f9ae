"""RunOptions: what TensorFlow's ``strategy.run(options=…)`` takes. Of use on TPUs alone."""

from typing import Any, NamedTuple


class RunOptions(NamedTuple):
    """Options of ``run``, as ``tf.distribute.RunOptions``. Accepted without effect: shapes are
    never fixed ahead.

    Attributes:
        experimental_enable_dynamic_batch_size: TensorFlow's.
        experimental_bucketizing_dynamic_shape: TensorFlow's.
        experimental_xla_options: TensorFlow's.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None
