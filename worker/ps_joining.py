"""A ps that no chief calls offers itself: the cluster may not have had it when the job began.

The chief calls the ps of its cluster by itself, so one that it knows has nothing to do here. One
that was started later, for a job that grows, says where it is; so does one that a restarted chief
does not know. See docs/replicas.md.
"""

import logging
import threading

from ..cluster.access import principal_of_task
from ..cluster.resolvers.resolved import ResolvedTask
from ..core.errors import RetryableError, RopewalkError
from ..core.process.threads import new_thread
from ..core.settings import Settings
from ..net.sockets import is_listening
from ..server.ps.lease import ChiefLease

log = logging.getLogger(__name__)

_PAUSE_S = 0.25
_KNOWN_S = 0.5  # in which a chief that listens calls the ps that it knows
_REFUSED_S = 10.0  # until a ps that was refused offers itself again
_CALL_S = 15.0  # in which it has to find the model directory


class PsOffer:
    """Offers a ps to the chief as long as no chief calls it.

    Args:
        task: The ps, and its cluster, which names the chief.
        settings: Credentials of the ps, and bounds.
        lease: Says whether a chief calls.
    """

    def __init__(self, task: ResolvedTask, settings: Settings, lease: ChiefLease) -> None:
        self._task = task
        self._settings = settings
        self._lease = lease
        self._closing = threading.Event()
        self._thread = new_thread("offer", self._run, failed=self._failed)

    def start(self) -> None:
        """Begin, where another ps may lead what this one has; else there is nothing to offer."""
        if self._settings.shares_move and self._task.chief_address:
            self._thread.start()

    def close(self) -> None:
        """Offer nothing more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CALL_S)

    @staticmethod
    def _failed(error: BaseException) -> None:
        log.error("this ps is not offered to a chief any more: %r", error)

    @property
    def _is_called(self) -> bool:
        lease = self._lease
        is_led = bool(lease.chief_address) and lease.silent_s < 3 * self._settings.heartbeat_s
        return is_led or lease.draining

    def _run(self) -> None:
        address, pause_s = self._task.chief_address, _PAUSE_S
        while not self._closing.wait(pause_s):
            pause_s = _PAUSE_S
            # Loading gRPC waits until that is needed: most ps are called before.
            if self._is_called or not is_listening(address, _KNOWN_S):
                continue
            if not self._closing.wait(_KNOWN_S) and not self._is_called:
                pause_s = self._offer(address)

    def _offer(self, address: str) -> float:
        """Call the chief once; how long to wait until the next time. Unit: seconds."""
        from ..client.chief.calls import ChiefClient

        who = self._task.task
        chief = ChiefClient(address, self._settings, principal_of_task(who, self._lease.job))
        try:
            chief.join_ps(who, self._task.address, timeout_s=_CALL_S)
        except RetryableError as error:
            log.debug("%s", error)
            return _PAUSE_S
        except RopewalkError as error:
            log.error("the chief does not take this ps: %s", error)
            return _REFUSED_S
        finally:
            chief.close()
        return _KNOWN_S
