"""rw.train: checkpoints by the program's objects, and a manager that keeps the newest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.errors import CheckpointError, ConfigurationError, ShapeMismatchError
from ropewalk.distribute import MirroredStrategy, ParameterServerStrategy, Strategy


class Dense:
    def __init__(self, value: float, size: int = 2) -> None:
        self.kernel = rw.Variable(np.full(size, value, np.float32), name="w")
        self.activation = np.tanh


class Model:
    def __init__(self, *values: float) -> None:
        self.layers = [Dense(value) for value in values]
        self.output = self.layers[-1]
        self.me = self  # objects may lead to each other


@pytest.fixture(params=["none", "mirrored", "ps"])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    if request.param == "mirrored":
        rw.config.set_logical_cpu_devices(2)
        return MirroredStrategy()
    return ParameterServerStrategy() if request.param == "ps" else rw.distribute.get_strategy()


def first_values(model: Model) -> list[float]:
    return [float(layer.kernel.numpy()[0]) for layer in model.layers]


def test_two_models_are_restored_whatever_order_they_are_made_in(
    strategy: Strategy, tmp_path: Path
) -> None:
    with strategy.scope():
        generator, critic = Model(1, 2), Model(3)
    path = rw.train.Checkpoint(generator=generator, critic=critic).save(str(tmp_path / "ckpt"))
    assert path == str(tmp_path / "ckpt-1")
    with strategy.scope():
        critic, generator = Model(0), Model(0, 0)
    restored = rw.train.Checkpoint(critic=critic, generator=generator)
    restored.restore(rw.train.latest_checkpoint(str(tmp_path))).assert_consumed()
    assert (first_values(generator), first_values(critic)) == ([1, 2], [3])
    assert restored.save(str(tmp_path / "ckpt")) == str(tmp_path / "ckpt-2")


def test_slots_come_back_with_their_variables(tmp_path: Path) -> None:
    def trained(steps: int, path: str | None, model: Model) -> Any:
        optimizer = rw.optimizers.Adam(0.1)
        checkpoint = rw.train.Checkpoint(model=model, optimizer=optimizer)
        checkpoint.restore(path)
        for _ in range(steps):
            w = model.output.kernel
            optimizer.apply_gradients([(2 * w.read_value(), w)])
        return checkpoint

    half = trained(2, None, Model(1)).save(str(tmp_path / "half"))
    straight, resumed = Model(1), Model(7)
    trained(4, None, straight)
    trained(2, half, resumed)
    np.testing.assert_array_equal(resumed.output.kernel.numpy(), straight.output.kernel.numpy())


def test_generators_and_dictionaries_are_found_too(tmp_path: Path) -> None:
    random = rw.random.Generator(1)
    checkpoint = rw.train.Checkpoint(state={"random": random, "bias": rw.Variable(1.0)})
    path = checkpoint.write(str(tmp_path / "here"))
    drawn = random.normal((3,))
    checkpoint.read(path).assert_consumed()
    np.testing.assert_array_equal(random.normal((3,)), drawn)


def test_what_does_not_match_is_named(tmp_path: Path) -> None:
    path = rw.train.Checkpoint(a=Model(1), b=Model(2)).save(str(tmp_path / "ckpt"))
    status = rw.train.Checkpoint(a=Model(0), c=Model(0)).restore(path)
    with pytest.raises(AssertionError, match="has no c/output/kernel"):
        status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="has b/output/kernel, no object has"):
        rw.train.Checkpoint(a=Model(0)).restore(path).expect_partial().assert_consumed()
    with pytest.raises(CheckpointError, match=r"nothing for these objects .*rw\.Checkpoint"):
        rw.train.Checkpoint(z=Model(0)).restore(path)
    other = Model(0)
    other.output.kernel = rw.Variable(np.zeros(3, np.float32))
    with pytest.raises(ShapeMismatchError, match=r"'a/output/kernel' has shape \(2,\) there"):
        rw.train.Checkpoint(a=other).restore(path)


def test_without_a_checkpoint_nothing_is_restored(tmp_path: Path) -> None:
    assert rw.train.latest_checkpoint(str(tmp_path / "none")) is None
    model = Model(5)
    status = rw.train.Checkpoint(model=model).restore(None)
    assert first_values(model) == [5]
    with pytest.raises(AssertionError, match="no checkpoint was restored"):
        status.assert_existing_objects_matched()


def test_a_root_gives_its_attributes(tmp_path: Path) -> None:
    path = rw.train.Checkpoint(Model(4), step=rw.Variable(9)).save(str(tmp_path / "ckpt"))
    model, step = Model(0), rw.Variable(0)
    rw.train.Checkpoint(model, step=step).restore(path).assert_consumed()
    assert (first_values(model), int(step)) == ([4], 9)
    with pytest.raises(ValueError, match="attribute 'layers', too"):
        rw.train.Checkpoint(model, layers=model)


# -- the manager -------------------------------------------------------------------------------


def test_a_manager_keeps_the_newest_and_goes_on_counting(tmp_path: Path) -> None:
    def manager(model: Model) -> rw.train.CheckpointManager:
        checkpoint = rw.train.Checkpoint(model=model)
        return rw.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)

    first = manager(Model(1))
    assert first.restore_or_initialize() is None
    paths = [first.save() for _ in range(3)]
    assert first.checkpoints == paths[1:] == [str(tmp_path / f"ckpt-{n}") for n in (2, 3)]
    model = Model(0)
    again = manager(model)
    assert again.restore_or_initialize() == again.latest_checkpoint == paths[2]
    assert first_values(model) == [1]
    assert again.save() == str(tmp_path / "ckpt-4")
    assert again.save(checkpoint_number=100) == str(tmp_path / "ckpt-100")
    assert again.checkpoints == [str(tmp_path / f"ckpt-{n}") for n in (4, 100)]


def test_a_manager_saves_when_its_interval_is_over(tmp_path: Path) -> None:
    step = rw.Variable(0, trainable=False)
    manager = rw.train.CheckpointManager(
        rw.train.Checkpoint(step=step),
        str(tmp_path),
        max_to_keep=None,
        step_counter=step,
        checkpoint_interval=10,
    )
    saved = []
    for now in range(0, 25, 4):
        step.assign(now)
        if manager.save():
            saved.append(now)
    assert saved == [0, 12, 24]
    assert manager.save(check_interval=False) is not None


def test_a_manager_initializes_where_there_is_nothing(tmp_path: Path) -> None:
    calls: list[str] = []
    manager = rw.train.CheckpointManager(
        rw.train.Checkpoint(), str(tmp_path), 1, init_fn=lambda: calls.append("made")
    )
    assert manager.restore_or_initialize() is None
    assert calls == ["made"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_to_keep": 0}, "max_to_keep"), ({"checkpoint_interval": 5}, "needs a step_counter")],
    ids=["none kept", "no counter"],
)
def test_a_manager_checks_its_arguments(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"max_to_keep": 1, **options}
    with pytest.raises(ValueError, match=message):
        rw.train.CheckpointManager(rw.train.Checkpoint(), "somewhere", **arguments)


# -- reading without the program ---------------------------------------------------------------


def test_a_checkpoint_is_read_by_itself_or_as_the_newest_of_its_directory(tmp_path: Path) -> None:
    manager = rw.train.CheckpointManager(rw.train.Checkpoint(m=Model(1)), str(tmp_path), 2)
    older = manager.save()
    manager.checkpoint = rw.train.Checkpoint(m=Model(5, 6))
    newer = manager.save(checkpoint_number=2)
    assert older is not None
    [(name, shape)] = rw.train.list_variables(older)
    assert (name.rsplit("/", 1)[-1], shape) == ("kernel", (2,))
    assert rw.train.load_variable(older, name).tolist() == [1, 1]
    assert len(rw.train.list_variables(str(tmp_path))) == 2
    assert rw.train.load_checkpoint(str(tmp_path)).path == newer


def test_what_is_no_checkpoint_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        rw.train.load_checkpoint(str(tmp_path))
    path = rw.train.Checkpoint(m=Model(1)).save(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match="has no variable 'w'"):
        rw.train.load_variable(path, "w")


def test_a_manager_leaves_the_checkpoints_of_a_job_in_its_directory_alone(tmp_path: Path) -> None:
    w = rw.Variable(np.ones(2, np.float32), name="w")
    job = rw.Checkpoint([w]).save(str(tmp_path), 120)
    manager = rw.train.CheckpointManager(rw.train.Checkpoint(w=w), str(tmp_path), max_to_keep=1)
    assert manager.restore_or_initialize() is None
    manager.save()
    assert manager.save() == manager.latest_checkpoint == f"{tmp_path}/ckpt-2"
    assert manager.checkpoints == [f"{tmp_path}/ckpt-2"]
    assert rw.train.list_variables(job) == [("w", (2,))]


def test_a_store_of_arrays_is_saved_by_its_names(tmp_path: Path) -> None:
    def make(strategy: rw.distribute.Strategy, value: float) -> rw.training.ArrayStore:
        arrays = {"a": {"w": np.full(3, value, np.float32)}, "b": np.float32(value)}
        return rw.training.ArrayStore(arrays, None, strategy)

    path = rw.train.Checkpoint(store=make(rw.distribute.ParameterServerStrategy(), 2.0)).save(
        str(tmp_path / "mine")
    )
    assert rw.train.list_variables(path) == [("store/a/w", (3,)), ("store/b", ())]
    store = make(rw.distribute.CentralStorageStrategy(), 0.0)
    rw.train.Checkpoint(store=store).restore(path).assert_consumed()
    assert store.pull()["a"]["w"].tolist() == [2.0, 2.0, 2.0]


def test_an_object_whose_state_has_arrays_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """Such as a module of PyTorch that no strategy shares."""

    class Module:
        def state_dict(self) -> dict[str, Any]:
            return {"weight": np.ones(2)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError(state)

    checkpoint = rw.train.Checkpoint(model=Module(), w=rw.Variable(1.0))
    for use in (checkpoint.write, checkpoint.restore):
        with pytest.raises(ConfigurationError, match=r"model \(Module\) would be without its arr"):
            use(str(tmp_path / "it"))
    assert not list(tmp_path.iterdir())
