"""Compression of values between a worker and its parameter servers."""

from dataclasses import dataclass

from ..arrays.dtypes import BFLOAT16, DType, as_dtype

_NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class WireFormat:
    """The format of values on the network; in shared memory they are not changed.

    Variables, slots and arithmetic keep their dtype.

    Args:
        gradients: ``"bfloat16"`` (8 bits of precision, the range of float32) or ``"float16"`` (11
            bits, up to 65504; larger values become 65504). None: as they are.
        values: Dtype for pulled values, as for ``gradients``.
        top_k: Share of the elements of each dense gradient that is sent, the largest ones, in (0,
            1). The rest is added to the next gradient (error feedback; Stich, Cordonnier
            and Jaggi, "Sparsified SGD with Memory", 2018). None: all. Gradients below 1024 elements
            are sent whole.

    Raises:
        ValueError: Another dtype, or a share out of range.
    """

    gradients: str | None = None
    values: str | None = None
    top_k: float | None = None

    def __post_init__(self) -> None:
        for what in ("gradients", "values"):
            name = getattr(self, what)
            if name is not None and name not in _NARROW:
                raise ValueError(f"{what}={name!r}: travels as {' or '.join(_NARROW)}, or None")
        if self.top_k is not None and not 0 < self.top_k < 1:
            raise ValueError(f"top_k={self.top_k!r} is no share between 0 and 1; None sends all")

    def gradient_dtype(self, dtype: DType) -> DType:
        """Return the dtype in which a gradient of ``dtype`` is sent."""
        return _narrower(dtype, self.gradients)

    def value_dtype(self, dtype: DType) -> DType:
        """Return the dtype in which a value of ``dtype`` is sent."""
        return _narrower(dtype, self.values)


def _narrower(dtype: DType, name: str | None) -> DType:
    narrow = as_dtype(name) if name is not None else dtype
    wide = dtype.kind == "f" and dtype.itemsize > 2 and dtype != BFLOAT16
    return narrow if wide else dtype
