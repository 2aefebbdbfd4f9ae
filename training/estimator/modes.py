"""What a model_fn is called for."""


class ModeKeys:
    """As ``tf.estimator.ModeKeys``: strings, so that a program may compare them with its own."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


ALL_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
