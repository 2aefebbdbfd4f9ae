"""Train a network with one hidden layer on parameter servers, as a TFJob.

After Kubeflow's "dist-mnist" for TFJob, whose code has 191 lines:
https://github.com/kubeflow/training-operator/blob/v1.7.0/examples/tensorflow/dist-mnist/dist_mnist.py

    python examples/ported/dist_mnist.py
    ropewalk local --no-chief --workers 2 --ps 2 examples/ported/dist_mnist.py

It ends with a cross-entropy of at most 0.25 per image that was held out.
"""

import argparse
import time

import numpy as np
from common import Dense, classify, load_digits, softmax

import ropewalk as rw

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--hidden-units", type=int, default=100)
parser.add_argument("--train-steps", type=int, default=600, help="of all workers together")
parser.add_argument("--batch-size", type=int, default=100)
parser.add_argument("--learning-rate", type=float, default=0.003)
arguments = parser.parse_args()

train, (images, labels) = load_digits()
strategy = rw.distribute.ParameterServerStrategy(placement=rw.distribute.placement.round_robin)
worker = f"worker {strategy.task_index}"

with strategy.scope():
    model = Dense([64, arguments.hidden_units, 10])
    optimizer = rw.optimizers.Adam(arguments.learning_rate)


def step(batch):
    loss, _, gradients = classify(model, *batch, len(batch[1]))
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    return loss


batches = rw.data.from_arrays(train, arguments.batch_size, epochs=None)
began = time.perf_counter()
for local_step, batch in enumerate(strategy.experimental_distribute_dataset(batches)):
    if strategy.global_step >= arguments.train_steps:
        break
    loss = strategy.reduce("MEAN", strategy.run(step, args=(batch,)))
    rw.training.report(loss=loss, total_steps=arguments.train_steps)
    if (local_step + 1) % 100 == 0:
        print(f"{worker}: {local_step + 1} steps done (global step {strategy.global_step})")
print(f"{worker}: trained for {time.perf_counter() - began:.2f} s")

probabilities = softmax(model(images))[np.arange(len(labels)), labels]
print(f"cross-entropy {-np.log(probabilities).mean():.4f}")
