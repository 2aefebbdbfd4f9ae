"""Train on a cluster and evaluate every checkpoint beside it: a moved Estimator program.

After the Estimator example of TensorFlow's ecosystem repository, whose code has 35 lines without
its data:
https://github.com/tensorflow/ecosystem/blob/master/distribution_strategy/keras_model_to_estimator.py

    python examples/ported/estimator.py
    ropewalk local --workers 1 --ps 2 --evaluator examples/ported/estimator.py

It ends with 90 % of the new examples right.
"""

import numpy as np
from common import Dense

import ropewalk as rw


def load_examples(seed: int, count: int = 1024):
    """Points in ten dimensions, and on which side of a plane they are: 0 or 1."""
    x = np.random.default_rng(seed).normal(size=(count, 10)).astype(np.float32)
    return x, (x @ np.linspace(-1, 1, 10, dtype=np.float32) > 0).astype(np.float32)


def model_fn(features, labels, mode, params):
    model = rw.estimator.once(Dense, [10, 16, 1])
    logits = model(features)[:, 0]
    if mode == rw.estimator.ModeKeys.PREDICT:
        return rw.estimator.EstimatorSpec(mode, predictions={"side": logits > 0})
    loss = np.mean(np.logaddexp(0, logits) - labels * logits)
    if mode == rw.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": rw.estimator.metrics.accuracy(labels, logits > 0)}
        return rw.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    _, gradients, _ = model.gradients(
        features, lambda logits: (1 / (1 + np.exp(-logits)) - labels[:, None]) / len(labels)
    )
    optimizer = rw.optimizers.SGD(params["learning_rate"])
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    return rw.estimator.EstimatorSpec(mode, loss=loss, train_op=True)


config = rw.estimator.RunConfig(train_distribute=rw.distribute.ParameterServerStrategy)
estimator = rw.estimator.Estimator(model_fn, config=config, params={"learning_rate": 0.2})
train_on = rw.estimator.numpy_input_fn(*load_examples(seed=0), 32, num_epochs=None, shuffle=True)
evaluate_on = rw.estimator.numpy_input_fn(*load_examples(seed=1), shuffle=False)
train_spec = rw.estimator.TrainSpec(train_on, max_steps=800)
eval_spec = rw.estimator.EvalSpec(evaluate_on, start_delay_secs=0, throttle_secs=1)
rw.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

if rw.training.task_type() != "worker":
    print(f"accuracy {estimator.evaluate(evaluate_on)['accuracy']:.4f}")
