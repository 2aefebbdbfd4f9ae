"""What a chief asks of a ps beside steps: to be led by it, to save, to leave."""

from dataclasses import dataclass

from ...core import codec
from ...core.checkpoint.manifest import TensorRecord
from ...core.definitions import ShardDefinition
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.states import Phase
from ...core.task import Incarnation, TaskId
from ...net.channel import invoke, open_channel
from ...proto.v1 import ps_pb2, ps_pb2_grpc


@dataclass(frozen=True, slots=True)
class PsAnswer:
    """What a ps said when the chief renewed its lease."""

    generation: int
    counters: PsCounters
    draining: bool


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one ps wrote of a checkpoint.

    Attributes:
        shards: (shard, updates of its rule, block) of every shard.
        applied: Block → task → (generation, sequence) of the last push in the block's values.
    """

    tensors: tuple[TensorRecord, ...]
    shards: tuple[tuple[ShardDefinition, int, int], ...]
    applied: dict[int, dict[str, tuple[int, int]]]
    global_step: int


class PsControl:
    """Unary calls to one ps. Thread-safe."""

    def __init__(self, task: TaskId, address: str, settings: Settings) -> None:
        self.task = task
        self.address = address
        self._settings = settings
        self._peer = f"{task} ({address})"
        self._channel = open_channel(address, settings)
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)

    def attach(
        self, chief: Incarnation, chief_address: str, *, lease_s: float, timeout_s: float
    ) -> PsAnswer:
        """Renew the chief's lease.

        Raises:
            PeerLostError: No answer.
            FencedError: Another chief leads there.
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

    def find_chief(self, *, timeout_s: float) -> str:
        """Address of the chief that leads this ps; empty while there is none.

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
        return response.chief_address

    def save_shards(self, directory: str, *, timeout_s: float) -> SavedPart:
        """Have this ps write its part of a checkpoint.

        Raises:
            RefusedError: It cannot write there.
            PeerLostError: No answer.
        """
        response = invoke(
            self._stub.SaveShards,
            ps_pb2.SaveShardsRequest(directory=directory),
            peer=self._peer,
            doing="save",
            timeout_s=timeout_s,
        )
        applied: dict[int, dict[str, tuple[int, int]]] = {}
        for push in response.applied:
            who = codec.incarnation_from_wire(getattr(push, "from"))
            applied.setdefault(push.block, {})[str(who.task)] = (who.generation, push.sequence)
        return SavedPart(
            tuple(
                TensorRecord(
                    variable=item.variable,
                    slot=item.slot,
                    row_offset=item.row_offset,
                    rows=item.rows,
                    file=item.file,
                    tensor=item.tensor,
                    digest=item.digest,
                    num_bytes=item.num_bytes,
                )
                for item in response.tensors
            ),
            tuple(
                (codec.shard_from_wire(item.shard), item.updates, item.block)
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
