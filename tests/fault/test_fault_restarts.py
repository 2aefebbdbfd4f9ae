"""What survives a restart, and what a restart says of it."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ropewalk as rw
import ropewalk.testing
from helpers.ps_peers import Ps, vector
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.cluster.job.job import Job
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.checkpoint.folder import open_folder
from ropewalk.core.checkpoint.job_record import (
    JobRecord,
    ShareRecord,
    read_job_record,
    write_job_record,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.core.wire.bounds import MAX_GENERATION
from ropewalk.net.this_machine import free_ports
from ropewalk.worker.lead.job_identity import find_job

CHIEF, W0 = TaskId("chief", 0), TaskId("worker", 0)


def train() -> float:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros(3, np.float32), name="w")
    for _ in range(3):
        strategy.run(lambda: w.assign_add(np.ones(3, np.float32)))
    return float(w.read_value()[0])


def run(model_dir: Path, program: Callable[[], object] = train) -> object:
    with ropewalk.testing.LocalCluster(workers=0, ps=2, model_dir=str(model_dir)) as cluster:
        return cluster.run(program)[CHIEF]


def test_a_restart_says_how_many_acknowledged_steps_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(tmp_path) == 3
    record = read_job_record(open_folder(str(tmp_path)))
    assert (record.phase, record.global_step) == (Phase.DONE, 3)
    write_job_record(open_folder(str(tmp_path)), record.model_copy(update={"global_step": 50}))
    with caplog.at_level(logging.INFO):
        assert run(tmp_path) == 6
    assert "47 acknowledged steps are lost: the job had reached global step 50" in caplog.text
    assert "the last whole checkpoint is of step 3" in caplog.text


def test_a_job_goes_back_to_the_whole_checkpoint_before_and_trains_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path)
    run(tmp_path)
    newest = latest_checkpoint(str(tmp_path))
    assert newest is not None
    assert newest.global_step == 6
    (Path(newest.path) / "ps-0.safetensors").unlink()
    assert run(tmp_path) == 6
    assert f"{newest.path}/ps-0.safetensors is missing" in caplog.text
    assert "Going back to" in caplog.text


def test_a_program_that_only_assigns_is_saved(tmp_path: Path) -> None:
    def assign() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable(np.zeros(3, np.float32), name="w")
        w.assign(np.full(3, 5, np.float32))

    run(tmp_path, assign)
    saved = latest_checkpoint(str(tmp_path))
    assert saved is not None
    assert CheckpointReader(saved.path).read("w").tolist() == [5, 5, 5]
    assert CheckpointReader(saved.path).manifest.final


def test_a_chief_that_returns_counts_on_from_the_one_before() -> None:
    """Whatever its clock says: a lower generation would be refused by its own ps."""
    ps = Ps("tcp")
    control = PsControl(ps.task, ps.address, Settings(), Principal("chief", index=0))
    try:
        far = 5 << 41  # a clock of the future gave it
        control.attach(Incarnation(CHIEF, far), "old:1", lease_s=0.01, timeout_s=5)
        ps.worker(1, far + 7).create(vector())
        found = find_job([control], CHIEF, Settings(lease_s=0.04))
        assert (found.last_generation, found.shards) == (far, 1)
        job = Job([(CHIEF, ""), (W0, "")], chief=CHIEF, lease_s=1, now=0, name=None)
        job.identify(found.job, after=found.last_generation)
        chief = job.register(CHIEF, now=0)
        control.attach(chief, "new:1", lease_s=1, timeout_s=5)
        assert control.find_job(timeout_s=5).chief_address == "new:1"
        assert job.register(W0, now=0).generation > far + 7
    finally:
        control.close()
        ps.close()


def test_a_generation_that_a_worker_made_up_does_not_use_them_all_up() -> None:
    """What a worker shows a ps is its own word; a restarted chief counts on from a chief's."""
    ps = Ps("tcp")
    control = PsControl(ps.task, ps.address, Settings(), Principal("chief", index=0))
    try:
        control.attach(Incarnation(CHIEF, 7), "old:1", lease_s=0.01, timeout_s=5)
        ps.worker(1, MAX_GENERATION).create(vector())
        found = find_job([control], CHIEF, Settings(lease_s=0.04))
        job = Job([(CHIEF, ""), (W0, "")], chief=CHIEF, lease_s=1, now=0, name=None)
        job.identify(found.job, after=found.last_generation)
        control.attach(job.register(CHIEF, now=0), "new:1", lease_s=1, timeout_s=5)
        assert control.find_job(timeout_s=5).chief_address == "new:1"
    finally:
        control.close()
        ps.close()


@pytest.mark.parametrize(
    "text", ["[]", '{"last_generation": -1}', '{"last_generation": 1e400}', '{"global_step": 1%s}']
)
def test_a_record_with_impossible_numbers_is_named_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "job.json").write_text(text.replace("%s", "0" * 30))
    assert read_job_record(open_folder(str(tmp_path))) == JobRecord()
    assert "job.json is not used: it was altered" in caplog.text


def test_the_record_of_the_largest_job_is_read_again(tmp_path: Path) -> None:
    ps = range(1024)
    record = JobRecord(
        shares=tuple(ShareRecord(share=i, epoch=10**6, leader=i, followers=(i,)) for i in ps),
        num_shares=len(ps),
        processes=dict.fromkeys(ps, 1 << 62),
        servers={i: f"{'a' * 63}-{i}.{'b' * 63}.{'c' * 63}.svc.cluster.local:65535" for i in ps},
    )
    write_job_record(open_folder(str(tmp_path)), record)
    assert read_job_record(open_folder(str(tmp_path))) == record


@pytest.mark.parametrize("in_sync", [False, True], ids=["on ps", "in sync"])
def test_a_worker_that_comes_after_its_job_is_done_ends_with_0_at_once(
    run_cli: Callable[..., object],
    tmp_path: Path,
    write_program: Callable[..., str],
    in_sync: bool,
) -> None:
    folder = open_folder(str(tmp_path / "model"))
    folder.make()
    write_job_record(folder, JobRecord(job="digits", phase=Phase.DONE, global_step=9))
    chief, ps, worker = (f"127.0.0.1:{port}" for port in free_ports(3))
    servers = {} if in_sync else {"ps": [ps]}
    config = {
        "cluster": {"chief": [chief], "worker": [worker], **servers},
        "task": {"type": "worker", "index": 0},
    }
    result = run_cli(
        "run", "--model-dir", str(tmp_path / "model"), "--job-id", "digits", write_program(),
        TF_CONFIG=json.dumps(config), timeout_s=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr  # type: ignore[attr-defined]
    told = result.stderr + result.stdout  # type: ignore[attr-defined]
    assert "job 'digits' is done already, with global step 9" in told
