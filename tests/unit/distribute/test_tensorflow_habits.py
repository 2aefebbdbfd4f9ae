"""What programs write that were moved from TensorFlow by changing names: it works, or the error
says what to write instead.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

untyped: Any = rw
ONES = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda: untyped.function, "ropewalk has no 'function': .*leave it out"),
        (lambda: untyped.keras, r"docs/keras\.md"),
        (lambda: untyped.config.list_physical_devices, "list_logical_devices"),
        (lambda: untyped.data.TFRecordDataset, "from_files"),
        (lambda: untyped.distribute.experimental.PreemptionWatcher, "SIGTERM"),
        (lambda: untyped.optimizers.schedules, r"rw\.optimizers\.CosineDecay"),
        (lambda: untyped.metrics.MeanIoU, r"docs/keras\.md"),
        (lambda: untyped.train.checkpoints_iterator, "SidecarEvaluator"),
        (lambda: untyped.optimizers.SGD().minimize, "SGD has no 'minimize': compute gradients"),
        (lambda: untyped.optimizers.Addam, "did you mean 'Adam'"),
    ],
    ids=lambda each: each[:12] if isinstance(each, str) else "",
)
def test_a_name_that_is_not_here_says_what_to_write(
    look_up: Callable[[], Any], message: str
) -> None:
    with pytest.raises(AttributeError, match=message):
        look_up()


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_ema": True},
        {"weight_decay": 0.1},
        {"gradient_accumulation_steps": 2},
        {"loss_scale_factor": 2.0},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_an_argument_of_keras_that_is_not_here_says_what_to_write(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"SGD has no argument .*: (keep|use|add|divide)"):
        rw.optimizers.SGD(0.1, **arguments)


def test_an_argument_of_keras_that_is_switched_off_is_left_out() -> None:
    made = rw.optimizers.Adam(
        0.1, amsgrad=False, use_ema=False, ema_momentum=0.99, weight_decay=None
    )  # type: ignore[call-arg]
    assert made.learning_rate == 0.1


@pytest.mark.parametrize("name", ["constraint", "validate_shape", "caching_device"])
def test_an_argument_of_a_variable_that_is_not_here_says_what_to_write(name: str) -> None:
    with pytest.raises(TypeError, match=f"Variable takes no {name!r}: "):
        rw.Variable(1.0, **{name: lambda value: value})  # type: ignore[arg-type]
    rw.Variable(1.0, **{name: True if name == "validate_shape" else None})  # type: ignore[arg-type]


def test_an_optimizer_has_a_name_and_a_configuration() -> None:
    made = rw.optimizers.SGD(rw.optimizers.CosineDecay(0.1, 10), momentum=0.5, name="mine")
    assert made.name == "mine"
    assert rw.optimizers.SGD().name == "SGD"
    again = rw.optimizers.SGD.from_config(made.get_config())
    assert (again.name, again.rule) == ("mine", made.rule)
    assert copy.deepcopy(again).name == "mine"
    by_step = rw.optimizers.SGD(lambda step: 0.5 + step)
    assert rw.optimizers.SGD.from_config(by_step.get_config()).learning_rate == 0.5


def test_a_rate_is_read_and_assigned_as_a_variable() -> None:
    made = rw.optimizers.SGD(0.5)
    assert made.learning_rate.numpy() == 0.5
    made.learning_rate.assign(0.25)
    assert made.learning_rate == 0.25
    made.learning_rate = made.learning_rate * 2
    assert type(made.current.learning_rate) is float


def test_steps_are_counted_and_gradients_applied_as_in_keras_3() -> None:
    first, second = rw.Variable(ONES), rw.Variable(ONES)
    made = rw.optimizers.SGD(1.0)
    made.build([first, second])
    made.apply([ONES, None])
    made.apply([ONES, ONES], [first, second])
    assert first.numpy().tolist() == [-1, -1]
    assert second.numpy().tolist() == [0, 0]
    assert made.iterations.numpy() == 2


def test_a_schedule_of_the_programs_own() -> None:
    class Halving(rw.optimizers.LearningRateSchedule):
        def __call__(self, step: int) -> float:
            return 0.5**step

    weight = rw.Variable(ONES)
    made = rw.optimizers.SGD(Halving())
    made.apply_gradients([(ONES, weight)])
    made.apply_gradients([(ONES, weight)])
    assert weight.numpy().tolist() == [-0.5, -0.5]
    assert isinstance(rw.optimizers.CosineDecay(0.1, 10), rw.optimizers.LearningRateSchedule)


@pytest.mark.parametrize(
    ("t_mul", "expected"),
    [
        (2.0, [0.1, 0.0999023, 0.0901, 0.04555, 0.08119, 0.041095]),
        (1.0, [0.1, 0.0999023, 0.0901, 0.08119, 0.073171, 0.0594588]),
    ],
    ids=["longer each time", "of one length"],
)
def test_cosine_decay_with_restarts(t_mul: float, expected: list[float]) -> None:
    # Keras 3.15, at these steps.
    schedule = rw.optimizers.CosineDecayRestarts(0.1, 50, t_mul, 0.9, 0.01)
    rates = [schedule(step) for step in (0, 1, 50, 100, 150, 250)]
    assert rates == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_metric_counts_once_outside_of_run(replicas: int) -> None:
    rw.config.set_logical_cpu_devices(2)
    strategy = rw.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        accuracy = rw.metrics.SparseCategoricalAccuracy()
        total = rw.metrics.Sum()
    scores = np.array([[0.9, 0.1, 0], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    accuracy.update_state([0, 1, 2], scores)
    assert accuracy.result() == pytest.approx(2 / 3)
    strategy.run(lambda: total.update_state([1.0]))
    with strategy.scope():
        total.update_state([4.0])
    assert total.result() == replicas + 4


@pytest.mark.parametrize(
    ("name", "true", "predicted", "expected"),
    [
        # Keras 3.15.
        ("MeanSquaredError", [1.0, 2.0], [2.0, 4.0], 2.5),
        ("RootMeanSquaredError", [1.0, 2.0], [2.0, 4.0], 1.5811388),
        ("MeanAbsoluteError", [1.0, 2.0], [2.0, 4.0], 1.5),
        ("Precision", [1, 0, 1], [1.0, 1.0, 0.0], 0.5),
        ("Recall", [1, 0, 1], [1.0, 1.0, 0.0], 0.5),
        ("Recall", [0, 0], [1.0, 1.0], 0.0),
    ],
)
def test_errors_and_hit_rates(
    name: str, true: list[float], predicted: list[float], expected: float
) -> None:
    metric = getattr(rw.metrics, name)()
    metric.update_state(np.array(true), np.array(predicted))
    assert metric.result() == pytest.approx(expected)


def test_a_threshold_is_a_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        rw.metrics.Precision(thresholds=2)


def test_a_checkpoint_is_read_as_with_tensorflows_reader(tmp_path: Path) -> None:
    path = rw.train.Checkpoint(a=rw.Variable(ONES, name="a")).save(f"{tmp_path}/c")
    reader = rw.train.load_checkpoint(path)
    (name,) = (each for each in reader.get_variable_to_shape_map() if each.startswith("a"))
    assert reader.has_tensor(name)
    assert not reader.has_tensor("missing")
    assert reader.get_tensor(name).tolist() == [1, 1]
    assert reader.get_variable_to_shape_map()[name] == (2,)
    assert reader.get_variable_to_dtype_map()[name] == np.float32
