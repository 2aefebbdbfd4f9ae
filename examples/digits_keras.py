"""Train a Keras model on parameter servers: three lines differ from a program without them.

A small network on scikit-learn's 1,797 scanned digits. Alone, or on a cluster of this machine:

    python examples/digits_keras.py
    KERAS_BACKEND=torch python examples/digits_keras.py
    ropewalk local --workers 2 --ps 2 examples/digits_keras.py

It ends with 90 % of the test digits or more, which others wrote than the training digits.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from sklearn.datasets import load_digits

import ropewalk as rw

digits = load_digits()
images, labels = digits.data.astype("float32") / 16, digits.target

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(
    images[:1200],
    labels[:1200],
    batch_size=64,
    epochs=15,
    verbose=0,
    callbacks=[keras.callbacks.ModelCheckpoint("digits.keras")],  # on the chief alone
)

_, accuracy = model.evaluate(images[1200:], labels[1200:], verbose=0)
print(f"test accuracy {accuracy:.4f}")
