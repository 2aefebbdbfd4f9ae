"""PyTorch: optimizers that call a closure as often as they like, alone, on a ps and in sync."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.sharded import through_a_session
from helpers.waiting import scaled

torch: Any = pytest.importorskip("torch")

from helpers import torch_closures  # noqa: E402 - which loads PyTorch

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad"),
]


def plain(case: str) -> list[float]:
    return torch_closures.train(case, lambda optimizer, _: optimizer)


@pytest.mark.parametrize("case", torch_closures.MAKE)
@pytest.mark.parametrize("make", [through_a_session, rw.distribute.ParameterServerStrategy])
def test_an_optimizer_with_a_closure_has_the_curve_it_has_alone(
    make: Callable[[], Any], case: str
) -> None:
    strategy = make()
    shared = torch_closures.train(case, torch_closures.shared_by(strategy))
    np.testing.assert_allclose(shared, plain(case), rtol=1e-10)
    assert strategy.global_step == 6


def test_workers_in_sync_search_along_the_line_of_the_whole_batch(tmp_path: Path) -> None:
    local = ["local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]
    code, output, errors = processes.run(
        [*processes.ROPEWALK, *local, torch_closures.__file__],
        timeout_s=scaled(120),
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert code == 0, output + errors
    one, other = map(json.loads, re.findall(r"found (\{.*\})", output))
    assert one == other
    for case in torch_closures.MAKE:
        np.testing.assert_allclose(one[case], plain(case), rtol=1e-8, err_msg=case)


def test_steps_beside_step_are_an_error_that_says_what_to_write() -> None:
    class InTwo(torch_closures.Sharp):
        def first_step(self) -> None:
            """As many programs have it."""

    optimizer = InTwo(torch.nn.Linear(1, 1).parameters(), 0.1)
    shared = rw.training.torch.DistributedOptimizer(optimizer)
    with pytest.raises(AttributeError, match=r"which InTwo has.*step\(closure\)"):
        shared.first_step()
    with pytest.raises(AttributeError, match=r"no attribute 'second_step'$"):
        shared.second_step()


def test_a_closure_and_rows_of_a_collection_do_not_go_together() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    table = rw.embedding.TableConfig("t", dim=2, vocabulary_size=4)
    features = [rw.embedding.FeatureConfig("f", table)]
    rows = rw.training.torch.EmbeddingBagCollection(features, rw.optimizers.Adagrad(0.1), strategy)
    module = torch.nn.ModuleList([rows, torch.nn.Linear(2, 1)])
    with pytest.raises(rw.errors.ConfigurationError, match="take another optimizer for a module"):
        rw.training.torch.DistributedOptimizer(
            torch.optim.LBFGS(module.parameters()), strategy, module=module
        )
