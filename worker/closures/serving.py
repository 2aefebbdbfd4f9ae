"""What a worker without a program does between joining its job and leaving it."""

from ...core.errors import WindlassError
from ...core.exit_codes import ExitCode
from ...core.states import Outcome
from ...distribute.runtime import ClusterRuntime
from ..process.program import Ending, ending_of
from .server import ClosureServer

_POLL_S = 0.2


def serve_closures(runtime: ClusterRuntime, *, may_end_process: bool = False) -> Ending:
    """Run closures until the job is over, or this task should end; returns how it ended.

    Args:
        runtime: The worker's connection to its cluster.
        may_end_process: A closure that does not end in time takes this process with it: somebody
            starts another one.
    """
    server = ClosureServer(runtime, runtime.session.who.job, may_end_process=may_end_process)
    try:
        server.start()
        while not runtime.job.wait_over(_POLL_S):
            runtime.job.check()
    except WindlassError as error:
        return ending_of(error)
    finally:
        server.stop()
    return Ending(Outcome.DONE, ExitCode.DONE)
