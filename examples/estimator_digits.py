"""A program of tf.estimator, moved: a network on scikit-learn's 1,797 scanned digits.

Alone, on a cluster of this machine, or by plain python on every machine of a TF_CONFIG:

    python examples/estimator_digits.py
    ropewalk local --workers 2 --ps 2 --evaluator examples/estimator_digits.py
    TF_CONFIG=… python examples/estimator_digits.py --model_dir /shared/digits

or from here on a standing cluster elsewhere, with --remote_cluster HOST:PORT.

It ends with 90 % of the test digits or more, which others wrote than the training digits.
docs/estimator.md moves such a program step by step.
"""

import argparse
import logging

import numpy as np
from sklearn.datasets import load_digits

import ropewalk as rw

ModeKeys, EstimatorSpec = rw.estimator.ModeKeys, rw.estimator.EstimatorSpec


def input_fn(part, batch_size, num_epochs, shuffle):
    digits = load_digits()
    pixels, labels = (digits.data / 16).astype(np.float32), digits.target
    chosen = slice(0, 1200) if part == "train" else slice(1200, None)
    return rw.estimator.numpy_input_fn(
        {"pixels": pixels[chosen]}, labels[chosen], batch_size, num_epochs, shuffle
    )


def dense(name, inputs, units):
    """A kernel and a bias, as tf.layers.dense made them."""
    draw = np.random.default_rng(units)
    scale = np.sqrt(2 / inputs)
    kernel = rw.Variable(
        lambda: draw.normal(0, scale, (inputs, units)).astype(np.float32), name=f"{name}/kernel"
    )
    return kernel, rw.Variable(lambda: np.zeros(units, np.float32), name=f"{name}/bias")


def model_fn(features, labels, mode, params):
    x = features["pixels"]
    kernel, bias = dense("hidden", 64, params["hidden_units"])
    last_kernel, last_bias = dense("logits", params["hidden_units"], 10)
    hidden = np.maximum(x @ kernel + bias, 0)
    logits = hidden @ last_kernel + last_bias
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    predictions = {
        "class": logits.argmax(axis=1),
        "probabilities": exp / exp.sum(axis=1, keepdims=True),
    }
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)

    of_labels = predictions["probabilities"][np.arange(len(labels)), labels]
    loss = -np.log(of_labels + 1e-9).mean()
    accuracy = rw.estimator.metrics.accuracy(labels, predictions["class"])
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

    d_logits = (predictions["probabilities"] - np.eye(10, dtype=np.float32)[labels]) / len(labels)
    d_hidden = (d_logits @ last_kernel.read_value().T) * (hidden > 0)
    optimizer = rw.optimizers.Adagrad(params["learning_rate"])
    optimizer.apply_gradients(
        [
            (x.T @ d_hidden, kernel),
            (d_hidden.sum(axis=0), bias),
            (hidden.T @ d_logits, last_kernel),
            (d_logits.sum(axis=0), last_bias),
        ]
    )
    return EstimatorSpec(mode, loss=loss, train_op=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir")
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--remote_cluster")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    config = rw.estimator.RunConfig(
        experimental_distribute=rw.estimator.DistributeConfig(
            train_distribute=rw.distribute.ParameterServerStrategy,
            remote_cluster=arguments.remote_cluster,
        ),
        save_checkpoints_steps=200,
        keep_checkpoint_max=3,
        log_step_count_steps=200,
    )
    estimator = rw.estimator.Estimator(
        model_fn,
        model_dir=arguments.model_dir,
        config=config,
        params={"hidden_units": 64, "learning_rate": 0.1},
    )
    train_spec = rw.estimator.TrainSpec(
        input_fn("train", 64, num_epochs=None, shuffle=True), max_steps=arguments.max_steps
    )
    eval_spec = rw.estimator.EvalSpec(
        input_fn("test", 64, num_epochs=1, shuffle=False),
        steps=None,
        start_delay_secs=0,
        throttle_secs=1,
        exporters=[rw.estimator.BestExporter(), rw.estimator.FinalExporter("final")],
    )
    result = rw.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    if result is not None:  # of a process alone
        print(f"test accuracy {result[0]['accuracy']:.4f}")


if __name__ == "__main__":
    main()
