"""TPUClusterResolver: the accelerators that JAX finds in this process."""

from typing import Any, Self

from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import ClusterSpec
from ...core.errors import ConfigurationError
from ...training.extras import require


class TPUClusterResolver(ClusterResolver):
    """The TPU of this machine, as JAX has it. As TensorFlow's with ``tpu="local"``.

    TensorFlow asks Google Cloud for the address of a TPU's workers and sends graphs there. JAX runs
    on the machine that the TPU is in, and so does the program.

    Args:
        tpu: Name of the TPU: None, ``""`` or ``"local"``.
        **elsewhere: ``zone``, ``project`` and what else TensorFlow needs to find a TPU by its name:
            accepted, and not used.

    Raises:
        ConfigurationError: ``tpu`` names one that is elsewhere.
    """

    def __init__(self, tpu: str | None = None, **elsewhere: Any) -> None:  # noqa: ARG002
        if tpu not in (None, "", "local"):
            raise ConfigurationError(
                f"TPUClusterResolver(tpu={tpu!r}): programs run on the machine of the TPU; start "
                'this one there, with tpu="local", and where a slice has several machines on each '
                "of them"
            )

    @classmethod
    def connect(cls, tpu: str | None = None, **elsewhere: Any) -> Self:
        """Make the resolver; it connects to no service."""
        return cls(tpu, **elsewhere)

    def cluster_spec(self) -> ClusterSpec:
        """Empty: this process is all of it."""
        return ClusterSpec({})

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:  # noqa: ARG002
        """Return an empty address: there is no master."""
        return ""

    def _accelerators(self, kind: str | None, index: int | None) -> dict[str, int]:  # noqa: ARG002
        """Count JAX's devices of this process by kind, CPUs left out."""
        counts: dict[str, int] = {}
        for device in self.devices:
            if device.platform != "cpu":
                counts[device.platform.upper()] = counts.get(device.platform.upper(), 0) + 1
        return counts

    @property
    def devices(self) -> list[Any]:
        """``jax.local_devices()``.

        Raises:
            MissingExtraError: JAX is not installed.
        """
        return list(require("jax", "jax").local_devices())
