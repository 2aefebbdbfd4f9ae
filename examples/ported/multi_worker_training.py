"""Train on several workers in sync: the program of one machine, and TF_CONFIG.

After TensorFlow's tutorial "Multi-worker training with Keras", whose code has 33 lines without its
data: https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras

    python examples/ported/multi_worker_training.py
    ropewalk local --ps 0 --no-chief --workers 2 examples/ported/multi_worker_training.py

It ends with 93 % of the test digits or more, on any number of workers.
"""

import numpy as np
from common import Dense, classify, load_digits

import ropewalk as rw

EPOCHS = 15
GLOBAL_BATCH = 120  # of all workers together; each batch is divided between them

strategy = rw.distribute.MultiWorkerMirroredStrategy()  # the workers of TF_CONFIG
with strategy.scope():
    model = Dense([64, 32, 10])
    optimizer = rw.optimizers.SGD(0.1, momentum=0.9)

train, (test_images, test_labels) = load_digits()
batches = strategy.experimental_distribute_dataset(rw.data.from_arrays(train, GLOBAL_BATCH))


def step(batch):
    loss, _, gradients = classify(model, *batch, GLOBAL_BATCH)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    return loss


first = strategy.extended.should_checkpoint  # the first worker reports
for epoch in range(EPOCHS):
    losses = [strategy.reduce("SUM", strategy.run(step, args=(batch,))) for batch in batches]
    if first:
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")
if first:
    print(f"accuracy {np.mean(model(test_images).argmax(axis=1) == test_labels):.4f}")
