"""Choice between whole checkpoints and deltas of a job. Pure: neither files nor a clock.

A delta is one of the last whole checkpoint, not of the one before it: to read it takes two
checkpoints, one that is damaged or removed costs no other, and a ps has to know changes since one
moment only. What it costs is that deltas grow until the next whole one.
"""

from dataclasses import dataclass, replace

from ...core.checkpoint.manifest import Manifest
from .checkpoint_sources import WHOLE, WholeOrDelta


@dataclass(frozen=True, slots=True)
class DeltaPolicy:
    """See the module.

    Attributes:
        whole_every: Number of checkpoints of which one is whole.
        base: Name of the last whole one that deltas may name, and digest of its manifest.
        deltas: Number of checkpoints since.
    """

    whole_every: int = 1
    base: tuple[str, str] | None = None
    deltas: int = 0

    def following(self, *, final: bool) -> WholeOrDelta:
        """Choose the kind of the next checkpoint; the last one of a job is whole."""
        if final or self.whole_every == 1:
            return WHOLE
        if self.base is None or self.deltas + 1 >= self.whole_every:
            return WholeOrDelta(may_be_base=True)
        return WholeOrDelta(base=self.base)

    def after(
        self, kind: WholeOrDelta, name: str, digest: str, manifest: Manifest
    ) -> "DeltaPolicy":
        """Make the policy once a checkpoint was written.

        Args:
            kind: Kind that it was to be.
            name: Name of the checkpoint.
            digest: Digest of its manifest.
            manifest: Manifest of the checkpoint. If a delta has whole parts, since a ps did not
                know what changed or too much had, a whole one is next.
        """
        if kind.may_be_base:
            return replace(self, base=(name, digest), deltas=0)
        if kind.base is None or _has_whole_parts(manifest):
            return replace(self, base=None, deltas=0)
        return replace(self, deltas=self.deltas + 1)


def _has_whole_parts(manifest: Manifest) -> bool:
    parts = manifest.base.parts if manifest.base is not None else {}
    return manifest.base is None or any(
        len(parts.get(name, ())) < table.parts for name, table in manifest.tables.items()
    )
