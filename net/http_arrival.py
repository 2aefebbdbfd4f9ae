"""The end of the head of an HTTP request, for ports that answer such requests: pure."""

from .arrival import Arrival

HEAD_BYTES = 8 * 1024  # longest head; Prometheus' has a few hundred
_END = b"\r\n\r\n"


class HttpArrival(Arrival):
    """A request, up to the end of its head. One without an end is dropped at the limit."""

    __slots__ = ()

    def wanted(self) -> int:
        """Count the bytes that the head may still have; 0: it is complete, or too long."""
        return 0 if _END in self.first else max(0, HEAD_BYTES - len(self.first))

    @property
    def is_ours(self) -> bool:
        """Whether the head is complete."""
        return _END in self.first

    @property
    def is_grpc(self) -> bool:
        """Never."""
        return False

    @property
    def ticket(self) -> bytes:
        """Always empty: an HTTP request carries no ticket."""
        return b""

    @property
    def greeting(self) -> bytes:
        """The request."""
        return self.first
