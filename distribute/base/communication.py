"""Options of the collectives by which values of several workers become one, for
``MultiWorkerMirroredStrategy``.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class CommunicationImplementation(Enum):
    """The carrier of collectives, as ``tf.distribute.experimental.CommunicationImplementation``.

    AUTO: RING, until NCCL has been tried between machines. RING: ours, shared memory inside a host
    and gRPC between hosts. NCCL: NVIDIA's, through CuPy, between the first GPUs of the workers.
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclass(frozen=True, init=False)
class CommunicationOptions:
    """Options of collectives, as ``tf.distribute.experimental.CommunicationOptions``.

    Attributes:
        bytes_per_pack: Small arrays travel together until a pack exceeds this; 0: all of one dtype
            are one pack.
        timeout_seconds: Time after which a collective operation that waits for a worker is an error
            naming it; 0: it waits as long as the worker lives. Unit: seconds. None: as the
            strategy's options say, or as 0.
        implementation: Carrier of the collectives.
    """

    bytes_per_pack: int
    timeout_seconds: float | None
    implementation: CommunicationImplementation

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
    ) -> None:
        if bytes_per_pack < 0:
            raise ValueError(f"bytes_per_pack must be >= 0, got {bytes_per_pack}")
        if timeout_seconds is not None and timeout_seconds < 0:
            raise ValueError(f"timeout_seconds must be >= 0, or None, got {timeout_seconds}")
        object.__setattr__(self, "bytes_per_pack", bytes_per_pack)
        object.__setattr__(self, "timeout_seconds", timeout_seconds)
        object.__setattr__(self, "implementation", _implementation(implementation))

    def merge(self, options: "CommunicationOptions | None") -> "CommunicationOptions":
        """Replace fields that are the defaults by the other's."""
        if options is None:
            return self
        auto = CommunicationImplementation.AUTO
        return CommunicationOptions(
            options.bytes_per_pack or self.bytes_per_pack,
            self.timeout_seconds if options.timeout_seconds is None else options.timeout_seconds,
            self.implementation if options.implementation is auto else options.implementation,
        )


Options = CommunicationOptions


def CollectiveHints(  # noqa: N802 - TensorFlow's name
    bytes_per_pack: int = 0, timeout_seconds: float | None = None
) -> CommunicationOptions:
    """Make :class:`CommunicationOptions` by their old name."""
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


def _implementation(value: Any) -> CommunicationImplementation:
    if isinstance(value, CommunicationImplementation):
        return value
    try:
        return CommunicationImplementation[str(value).upper()]
    except KeyError:
        raise ValueError(f"implementation must be AUTO, RING or NCCL, got {value!r}") from None


CollectiveCommunication = CommunicationImplementation
