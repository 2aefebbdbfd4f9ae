"""A ps in another process, while it cannot be reached."""

import numpy as np

from helpers.ps_peers import PS, SETTINGS
from windlass.client.ps.remote_ps import RemotePs
from windlass.core.arrays.gather_buffer import GatherBuffer
from windlass.core.task import Incarnation, TaskId
from windlass.core.wire.steps import StepRequest


def test_a_step_that_waits_for_a_connection_keeps_values_that_the_program_changes() -> None:
    values = np.ones(100_000, np.float32)
    peer = RemotePs(PS, "127.0.0.1:1", Incarnation(TaskId("worker", 0), 1), SETTINGS)
    peer.prepare(
        StepRequest(1, values=[GatherBuffer([values], values.dtype, values.nbytes)], detached=True)
    )
    values[:] = 2
    request = peer._request
    assert request is not None
    assert np.frombuffer(request.values[0].buffer(), np.float32).tolist() == [1.0] * 100_000
    peer.close()
