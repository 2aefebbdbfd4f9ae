"""Files of a program: one task writes them, and they appear whole or not at all."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import ropewalk as rw


def test_the_chief_alone_writes_whatever_the_tasks_do_at_once(tmp_path: Path) -> None:
    target = tmp_path / "w.npz"
    wrote: list[tuple[bool, bool, bool]] = []
    together = threading.Barrier(3)

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        together.wait(30)
        by_cluster = rw.training.save(target, lambda path: np.savez(path, w=np.ones(1000)))
        given = rw.training.save(
            target, lambda path: np.savez(path, w=np.ones(1000)), strategy=strategy
        )
        with strategy.scope():
            in_scope = rw.training.save(target, lambda path: np.savez(path, w=np.ones(1000)))
        assert by_cluster == given == in_scope == strategy.should_save
        wrote.append((strategy.is_chief, given, in_scope))

    with rw.testing.LocalCluster(workers=2, ps=1) as cluster:
        cluster.run(train)
    assert sorted(wrote) == [(False,) * 3, (False,) * 3, (True,) * 3]
    assert np.load(target)["w"].sum() == 1000
    assert os.listdir(tmp_path) == ["w.npz"]


def test_what_is_there_stays_until_the_new_file_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "w.npy"
    assert rw.training.save(target, lambda path: np.save(path, np.zeros(3)))  # one process

    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        rw.training.save(target, fails)
    assert np.load(target).tolist() == [0, 0, 0]
    assert rw.training.save(str(target), lambda path: np.save(path, np.ones(3)))
    assert np.load(target).tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == ["w.npy"]


def test_a_writer_that_has_not_written_yet_is_to_be_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def write_later(path: Path) -> None:
        (path.parent / "later").mkdir()  # as a checkpointer that writes in the background

    with pytest.raises(FileNotFoundError, match=r"model returned.*has to.*wait for a writer"):
        rw.training.save(target, write_later)


def test_a_folder_takes_the_place_of_one(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def write(path: Path) -> None:
        path.mkdir()
        (path / "a").write_text("1")

    assert rw.training.save(target, write)
    (target / "old").write_text("of before")
    assert rw.training.save(target, write)
    assert os.listdir(target) == ["a"]
    assert os.listdir(tmp_path) == ["model"]


def test_a_task_of_tf_config_knows_its_place_before_there_is_a_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = '{"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}'
    for role, writes in (("chief", True), ("worker", False)):
        task = f'{{"type": "{role}", "index": 0}}'
        monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
        assert rw.training.save(tmp_path / role, Path.touch) is writes
    assert os.listdir(tmp_path) == ["chief"]


def test_a_url_is_refused() -> None:
    with pytest.raises(ValueError, match=r"s3://bucket/w.npy is no path of this machine"):
        rw.training.save("s3://bucket/w.npy", Path.touch)
