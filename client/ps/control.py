"""The chief's unary calls to a ps: renewing its lease, saving, ending the job."""

from dataclasses import dataclass

from ...cluster.principal import Principal
from ...core import codec
from ...core.checkpoint.manifest import TensorRecord
from ...core.checkpoint.saved_part import SavedPart, SavedShard
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.states import Phase
from ...core.task import Incarnation, TaskId
from ...net.channel import invoke, open_channel
from ...proto.v1 import ps_pb2, ps_pb2_grpc


@dataclass(frozen=True, slots=True)
class PsAnswer:
    """A ps's answer to the renewal of the chief's lease."""

    generation: int
    counters: PsCounters
    draining: bool


@dataclass(frozen=True, slots=True)
class JobOnPs:
    """The job that a ps serves.

    Attributes:
        job: Its id; empty: none yet.
        chief_address: Empty: no chief yet.
        silent_s: Since the chief was last heard of. Unit: seconds.
    """

    job: str
    chief_address: str
    silent_s: float


class PsControl:
    """Unary calls to one ps. Thread-safe.

    Args:
        task: The ps.
        address: Where it is.
        settings: How the caller shows who it is, and bounds.
        who: The caller.
    """

    def __init__(self, task: TaskId, address: str, settings: Settings, who: Principal) -> None:
        self.task = task
        self.address = address
        self._settings = settings
        self._peer = f"{task} ({address})"
        self._channel = open_channel(address, settings, who)
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)

    def attach(
        self, chief: Incarnation, chief_address: str, *, lease_s: float, timeout_s: float
    ) -> PsAnswer:
        """Renew the chief's lease.

        Raises:
            PeerLostError: No answer.
            FencedError: The ps serves another chief.
        """
        request = ps_pb2.AttachRequest(
            chief=codec.incarnation_to_wire(chief), chief_address=chief_address, lease_s=lease_s
        )
        response = invoke(
            self._stub.Attach, request, peer=self._peer, doing="attach", timeout_s=timeout_s
        )
        return PsAnswer(
            response.ps_generation,
            codec.counters_from_wire(response.counters),
            response.draining,
        )

    def find_job(self, *, timeout_s: float) -> JobOnPs:
        """The job this ps serves.

        Raises:
            PeerLostError: No answer.
        """
        request = ps_pb2.GetJobRequest()
        response = invoke(
            self._stub.GetJob,
            request,
            peer=self._peer,
            doing="ask for the chief",
            timeout_s=timeout_s,
        )
        return JobOnPs(response.job, response.chief_address, response.chief_silent_s)

    def try_directory(self, model_dir: str, *, timeout_s: float) -> None:
        """Have this ps try whether it can write there.

        Raises:
            StorageError: It cannot.
            PeerLostError: No answer.
        """
        invoke(
            self._stub.SaveShards,
            ps_pb2.SaveShardsRequest(directory=model_dir, only_try=True),
            peer=self._peer,
            doing="try to write",
            timeout_s=timeout_s,
            # The ps may have begun to listen only now, which the channel notices a little later.
            wait_for_ready=True,
        )

    def save_shards(self, directory: str, *, timeout_s: float) -> SavedPart:
        """Have this ps write its part of a checkpoint.

        Raises:
            StorageError: It cannot write there.
            PeerLostError: No answer.
        """
        response = invoke(
            self._stub.SaveShards,
            ps_pb2.SaveShardsRequest(directory=directory),
            peer=self._peer,
            doing="save",
            timeout_s=timeout_s,
        )
        applied: dict[int, dict[TaskId, tuple[int, int]]] = {}
        for push in response.applied:
            who = codec.incarnation_from_wire(getattr(push, "from"))
            applied.setdefault(push.block, {})[who.task] = (who.generation, push.sequence)
        return SavedPart(
            tuple(
                TensorRecord(
                    **{field.name: getattr(item, field.name) for field in item.DESCRIPTOR.fields}
                )
                for item in response.tensors
            ),
            tuple(
                SavedShard(
                    codec.shard_from_wire(item.shard), item.version, item.updates, item.block
                )
                for item in response.shards
            ),
            applied,
            response.global_step,
        )

    def end_job(self, phase: Phase, reason: str, *, timeout_s: float) -> None:
        """Tell this ps that the job is over.

        Raises:
            PeerLostError: No answer.
        """
        request = ps_pb2.EndJobRequest(phase=codec.phase_to_wire(phase), reason=reason)
        invoke(
            self._stub.EndJob, request, peer=self._peer, doing="end the job", timeout_s=timeout_s
        )

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
