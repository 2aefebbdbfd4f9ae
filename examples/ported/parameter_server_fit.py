"""Train a Keras model on parameter servers by ``fit``, with a DatasetCreator and callbacks.

After the half of TensorFlow's tutorial "Parameter server training with ParameterServerStrategy"
that trains by ``Model.fit``: https://www.tensorflow.org/tutorials/distribute/parameter_server_training
There the chief's ``fit`` sends steps to the workers; here every worker runs this program.

    python examples/ported/parameter_server_fit.py
    KERAS_BACKEND=tensorflow python examples/ported/parameter_server_fit.py
    ropewalk local --workers 2 --ps 2 examples/ported/parameter_server_fit.py

It ends with 93 % of the test digits or more.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from common import load_digits

import ropewalk as rw

EPOCHS, STEPS_PER_EPOCH = 5, 60  # of each worker
BATCH = 64

strategy = rw.distribute.ParameterServerStrategy()
keras.utils.set_random_seed(strategy.task_index)
train, test = load_digits()


def dataset_fn(context):  # called on each worker: an order of its own, without an end
    return rw.data.from_arrays(train, BATCH, epochs=None, seed=context.input_pipeline_id)


with strategy.scope():
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    model.compile(
        keras.optimizers.RMSprop(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(
    rw.training.keras.DatasetCreator(dataset_fn),
    epochs=EPOCHS,
    steps_per_epoch=STEPS_PER_EPOCH,
    verbose=0,
    callbacks=[  # the chief's alone
        keras.callbacks.ModelCheckpoint("digits-{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore("backup"),
        keras.callbacks.CSVLogger("digits.csv"),
    ],
)
strategy.barrier()  # all workers have trained
if strategy.is_chief:
    _, accuracy = model.evaluate(*test, verbose=0)
    print(f"accuracy {accuracy:.4f}")
