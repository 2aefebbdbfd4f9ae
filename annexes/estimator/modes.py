"""Modes in which a model_fn is called."""


class ModeKeys:
    """The modes of ``tf.estimator.ModeKeys``: strings, so that a program may compare them with its
    own.
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


ALL_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
