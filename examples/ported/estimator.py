"""Train on a cluster and evaluate every checkpoint beside it, as train_and_evaluate did.

After the Estimator example of TensorFlow's ecosystem repository, whose code has 35 lines without
its data:
https://github.com/tensorflow/ecosystem/blob/master/distribution_strategy/keras_model_to_estimator.py

    python examples/ported/estimator.py
    windlass local --workers 1 --ps 2 --evaluator examples/ported/estimator.py

It ends with 90 % of the new examples right.
"""

import numpy as np
from common import Dense

import windlass as wl

STEPS = 800


def load_examples(seed: int, count: int = 1024):
    """Points in ten dimensions, and on which side of a plane they are: 0 or 1."""
    x = np.random.default_rng(seed).normal(size=(count, 10)).astype(np.float32)
    return x, (x @ np.linspace(-1, 1, 10, dtype=np.float32) > 0).astype(np.float32)


def evaluate(model, values):
    """Of a checkpoint's variables, by name; on examples of its own."""
    x, y = load_examples(seed=1)
    return {"accuracy": np.mean((model(x, values)[:, 0] > 0) == y)}


def train():
    strategy = wl.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = Dense([10, 16, 1])
        optimizer = wl.optimizers.SGD(0.2)

    def step(batch):
        x, y = batch
        _, gradients, _ = model.gradients(
            x, lambda logits: (1 / (1 + np.exp(-logits)) - y[:, None]) / len(y)
        )
        optimizer.apply_gradients(zip(gradients, model.variables, strict=True))

    data = wl.data.from_arrays(load_examples(seed=0), 32, epochs=None)
    for batch in strategy.experimental_distribute_dataset(data):
        if strategy.global_step >= STEPS:
            break
        strategy.run(step, args=(batch,))
    return evaluate(model, {v.name: v.numpy() for v in model.variables})


if wl.training.is_evaluator():
    model = Dense([10, 16, 1])  # on no parameter server: its values are those of checkpoints
    evaluator = wl.training.SidecarEvaluator(lambda values: evaluate(model, values))
    metrics = evaluator.start()[-1].metrics  # of the job's last checkpoint
else:
    metrics = train()
print(f"accuracy {metrics['accuracy']:.4f}")
