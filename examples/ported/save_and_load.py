"""Save under one strategy; go on under another one, under none, or with the values alone.

After TensorFlow's tutorial "Save and load a model using a distribution strategy", whose code has 59
lines without its data: https://www.tensorflow.org/tutorials/distribute/save_and_load

    python examples/ported/save_and_load.py

It ends with 95 % of the test digits or more.
"""

import tempfile

import numpy as np
from common import Dense, classify, load_digits

import ropewalk as rw
from ropewalk.core.checkpoint import export_checkpoint

GLOBAL_BATCH = 64
train, (test_images, test_labels) = load_digits()


def make_model(strategy):
    """(model, optimizer), with variables of this strategy."""
    with strategy.scope():
        return Dense([64, 64, 10]), rw.optimizers.Adam(3e-3)


def fit(strategy, model, optimizer, epochs):
    def step(batch):
        _, _, gradients = classify(model, *batch, GLOBAL_BATCH)
        optimizer.apply_gradients(zip(gradients, model.variables, strict=True))

    batches = rw.data.from_arrays(train, GLOBAL_BATCH, epochs=epochs)
    for batch in strategy.experimental_distribute_dataset(batches):
        strategy.run(step, args=(batch,))
    accuracy = np.mean(model(test_images).argmax(axis=1) == test_labels)
    print(f"{type(strategy).__name__}: accuracy {accuracy:.4f}")


rw.config.set_logical_cpu_devices(2)
directory = tempfile.mkdtemp()

mirrored = rw.distribute.MirroredStrategy()
model, optimizer = make_model(mirrored)
fit(mirrored, model, optimizer, epochs=4)
path = rw.train.Checkpoint(model=model).save(f"{directory}/ckpt")

# Go on under another strategy, and without one. The slots of the optimizer are kept, too.
for strategy in (rw.distribute.OneDeviceStrategy("CPU:0"), rw.distribute.get_strategy()):
    model, optimizer = make_model(strategy)
    rw.train.Checkpoint(model=model).restore(path)
    fit(strategy, model, optimizer, epochs=2)

# For programs without Ropewalk: one file, which NumPy and safetensors can read.
export_checkpoint(path, f"{directory}/model.npz")
values = np.load(f"{directory}/model.npz")
print("exported:", ", ".join(f"{key} {values[key].shape}" for key in values.files))

# Predictions on all devices, in the order of the images.
another = rw.distribute.MirroredStrategy()
model, optimizer = make_model(another)
rw.train.Checkpoint(model=model).restore(path)
predicted = []
test_batches = rw.data.from_arrays(test_images, GLOBAL_BATCH, shuffle=False)
for batch in another.experimental_distribute_dataset(test_batches):
    outputs = another.run(model, args=(batch,))
    predicted += another.gather(outputs, axis=0).argmax(axis=1).tolist()
print(f"restored: accuracy {np.mean(predicted == test_labels):.4f}")
fit(another, model, optimizer, epochs=4)
