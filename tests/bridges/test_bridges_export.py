"""Exports load in the frameworks they are for, which know nothing of Ropewalk."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.waiting import scaled
from ropewalk.core.errors import ConfigurationError

pytestmark = pytest.mark.bridges

os.environ.setdefault("KERAS_BACKEND", "jax")

rng = np.random.default_rng(0)
W, B = rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=2).astype(np.float32)


def test_a_state_dict_loads_in_a_plain_module(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    optimizer = rw.training.torch.DistributedOptimizer(
        torch.optim.Adam(module.parameters()),
        rw.distribute.ParameterServerStrategy(),
        module=module,
        name="net",
    )
    rw.training.export(optimizer, tmp_path / "net.pt", prefix="net/")
    state = torch.load(tmp_path / "net.pt", weights_only=True)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    missing = plain.load_state_dict(state, strict=False).missing_keys
    assert missing in ([], ["1.num_batches_tracked"])
    assert torch.equal(plain[0].weight, module[0].weight)


def test_orbax_restores_a_tree(tmp_path: Path) -> None:
    optax: Any = pytest.importorskip("optax")
    orbax: Any = pytest.importorskip("orbax.checkpoint")
    params = {"layers": [{"w": W, "b": B}], "scale": np.float32(2)}
    strategy = rw.distribute.ParameterServerStrategy()
    state = rw.training.jax.TrainState(params, optax.adam(1e-3), strategy)
    target = tmp_path / "exported"
    assert rw.training.export(state, target, format="orbax") == state.store.names
    with pytest.raises(FileExistsError):
        rw.training.export(state, target, format="orbax")
    rw.training.export(state, target, format="orbax", overwrite=True)
    assert os.listdir(tmp_path) == ["exported"]
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(target)
    assert np.array_equal(found["layers"]["0"]["w"], W)
    assert float(found["scale"]) == 2.0


TRAIN = """\
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
import ropewalk as rw

def make_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")], name="net")
    model.compile("adam", "mse")
    return model

if __name__ == "__main__":
    strategy = rw.distribute.ParameterServerStrategy()
    model = rw.training.keras.distribute(make_model(), strategy)
    model.fit(np.ones((32, 3)), np.ones((32, 2)), epochs=2, verbose=0)
    np.save("kernel.npy", model.weights[0].numpy())
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras, with this NumPy
def test_a_checkpoint_is_a_keras_file_by_the_command(tmp_path: Path) -> None:
    keras: Any = pytest.importorskip("keras")
    (tmp_path / "train.py").write_text(TRAIN)
    run = ["run", "--model-dir", "model", "train.py"]
    export = ["export", "model", "-o", "net.keras", "--model", "train:make_model"]
    for command in (run, export):
        code, output, errors = processes.run(
            [*processes.ROPEWALK, *command], timeout_s=scaled(150), cwd=tmp_path
        )
        assert code == 0, output + errors
    plain = keras.models.load_model(tmp_path / "net.keras")
    assert np.array_equal(plain.weights[0].numpy(), np.load(tmp_path / "kernel.npy"))


def test_a_model_of_other_layers_is_refused(tmp_path: Path) -> None:
    keras: Any = pytest.importorskip("keras")
    arrays = {"net/out/kernel": W, "net/out/bias": B}
    target = tmp_path / "net.keras"
    with pytest.raises(ConfigurationError, match="give model="):
        rw.training.export(arrays, target)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="in")], name="net")
    with pytest.raises(ConfigurationError, match="'net/in/kernel', and what is exported has net/o"):
        rw.training.export(arrays, target, model=model)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="out")], name="net")
    with pytest.raises(ConfigurationError, match=r"shape \(3, 4\) in 'net', and \(3, 2\)"):
        rw.training.export(arrays, target, model=model)
    assert os.listdir(tmp_path) == []


EVERY_WORKER_SAVES = """\
import os
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(500), keras.layers.Dense(2)])
    model.compile("adam", "mse")
model.fit(np.ones((64, 200)), np.ones((64, 2)), epochs=1, verbose=0)
for _ in range(5):
    strategy.barrier()
    model.save("net.keras")
    model.save_weights("net.weights.h5")
strategy.barrier()
same = keras.models.load_model("net.keras")
assert np.array_equal(same.weights[0].numpy().shape, (200, 500))
model.load_weights("net.weights.h5")
print("saved" if strategy.should_save else "left it to the chief", flush=True)
"""


@pytest.mark.scenario
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras, with this NumPy
def test_every_worker_saves_a_keras_model_and_the_chief_writes_it(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    (tmp_path / "train.py").write_text(EVERY_WORKER_SAVES)
    command = ["local", "--plain", "--workers", "2", "--ps", "1", "--model-dir", "job", "train.py"]
    code, output, errors = processes.run(
        [*processes.ROPEWALK, *command], timeout_s=scaled(200), cwd=tmp_path
    )
    assert code == 0, output + errors
    assert output.count("left it to the chief") == 2
    assert output.count("| saved\n") == 1
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]
    assert left == []


def test_a_state_dict_is_saved_by_the_chief_as_torch_saves_it(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    assert rw.training.torch.save(module.state_dict(), tmp_path / "m.pt")
    assert torch.equal(torch.load(tmp_path / "m.pt")["weight"], module.weight)
    assert os.listdir(tmp_path) == ["m.pt"]
