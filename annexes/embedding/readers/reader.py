"""A reader: another process looks up rows of the tables of a running job, for inference.

It takes part in nothing: no task waits for it, and a lookup makes no row and counts no key. Rows
that it keeps follow their changes in a thread of its own, so that most lookups need no ps.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from ....cluster.resolvers.tf_config import TFConfigClusterResolver
from ....cluster.spec import canonical_spec, chief_of
from ....core.arrays.dtypes import Array, as_dtype
from ....core.errors import ConfigurationError, PeerLostError, RopewalkError, StaleRowsError
from ....core.process.log_records import RareLog
from ....core.process.threads import new_thread
from ....core.rules.definitions import VariableDefinition
from ....core.settings import load_settings, quiet_grpc
from ....net.auth.credentials import with_own_job
from ....net.host import MetricsPort
from ....telemetry.catalogue import READER_RECEIVED, Sample
from ....telemetry.task_metrics import task_samples
from ..features.config import DEFAULT_CACHE_BYTES, FeatureConfig, TableConfig
from ..features.inputs import FeatureBags, by_name
from ..features.row_cache import CachedLookup, rows_of
from .followed_tables import FollowedTable, followed_samples, ranges_of
from .reader_session import ReaderSession

log = logging.getLogger(__name__)

# -- Arguments of a reader: its chief, its tables, and which rows it keeps; checked ------------


LookedUp = Literal["looked_up"]
Keys = LookedUp | Sequence[tuple[int, int]] | Array
"""Choice of rows of a table that are kept: those that lookups bring, ranges of keys, or an array of
keys.
"""


def chief_of_cluster() -> str:
    """Find the address of the chief in the cluster of TF_CONFIG.

    Raises:
        ConfigurationError: There is none.
    """
    spec = canonical_spec(TFConfigClusterResolver().cluster_spec())
    if not spec:
        raise ConfigurationError(
            "a Reader needs the address of the job's chief, as its first argument or in the "
            "cluster of TF_CONFIG"
        )
    chief = chief_of(spec)
    return spec.task_address(chief.type, chief.index)


def checked_keys(
    keys: Mapping[str, Keys], tables: Mapping[str, TableConfig]
) -> dict[str, tuple[tuple[int, int], ...] | Array | None]:
    """Check the choice of rows that are kept, by name of the table; None: those that lookups bring.

    Raises:
        ConfigurationError: There is no such table, or that is no choice of keys.
        ValueError: A range is none.
    """
    if unknown := keys.keys() - tables.keys():
        raise ConfigurationError(
            f"keys of {min(unknown)!r}, and no feature has such a table; those are "
            f"{', '.join(tables)}"
        )
    checked: dict[str, tuple[tuple[int, int], ...] | Array | None] = {}
    for name, which in keys.items():
        if isinstance(which, str):
            if which != "looked_up":
                raise ConfigurationError(
                    f'keys of table {name!r} are {which!r}; write "looked_up", ranges, or an array'
                )
            checked[name] = None
        elif isinstance(which, np.ndarray):
            if which.dtype.kind not in "iu" or not which.size:
                raise ConfigurationError(
                    f"keys of table {name!r} are {which.dtype}{list(which.shape)}; give integers, "
                    "one at least"
                )
            checked[name] = np.ascontiguousarray(which).reshape(-1).astype(np.int64)
        else:
            checked[name] = ranges_of(name, which)
    return checked


def check_table(config: TableConfig, definition: VariableDefinition) -> None:
    """Check that a table of the job is the one that a feature names.

    Raises:
        ConfigurationError: It is another one.
    """
    grows = definition.table is not None
    dim = definition.shape[1:]
    theirs = f"{definition.dtype.name}{list(dim)}, {'growing' if grows else definition.shape[:1]}"
    rows = None if grows else definition.shape[0] if definition.shape else 0
    if (rows, dim, definition.dtype) != (
        config.vocabulary_size, (config.dim,), as_dtype(config.dtype),
    ):  # fmt: skip
        raise ConfigurationError(
            f"table {config.name!r} is {theirs} in the job; the reader's TableConfig has "
            f"dim={config.dim}, dtype={as_dtype(config.dtype).name} and "
            f"vocabulary_size={config.vocabulary_size}. Write it as the training program does",
            table=config.name,
        )


_ROUNDS_PER_LAG = 4
_MAX_LAG_S = 86_400.0
_CUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RowsAtOneMoment(Mapping[str, Array]):
    """Combined rows by feature, of one moment of all parameter servers.

    Attributes:
        rows: The rows by feature, as :meth:`Reader.lookup` returns them.
        global_step: Global step at that moment.
        pushes: Number of the last push of each task (``"worker:0"``) that is in the rows. All up to
            there are, whichever server they went to, and none beyond.
    """

    rows: Mapping[str, Array]
    global_step: int
    pushes: Mapping[str, int]

    def __getitem__(self, feature: str) -> Array:
        return self.rows[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class Reader:
    """Reads the tables of a running job, without taking part in it. Thread-safe.

    ::

        users = rw.embedding.TableConfig("users", dim=16)
        features = [rw.embedding.FeatureConfig("user", users)]
        with rw.embedding.Reader("chief.example:2222", features, cert="reader.pem", ...) as reader:
            rows = reader.lookup({"user": ids})["user"]  # (examples, 16)

    Without ``keys`` every lookup reads the rows as they are on the servers, as a worker's does.
    With ``keys`` some rows are kept here and follow their changes: a lookup reads those rows as
    they were at most ``max_lag_s`` ago, and asks the servers for others. If they are older, it asks
    the servers for all; if these do not answer either, that is an error, or a warning.

    Args:
        chief: Address of the job's chief (of worker 0 in a cluster without one), host:port. None:
            it is that of the cluster in TF_CONFIG.
        features: Features as in the training program. Of a table its name, ``dim``, ``dtype``,
            ``vocabulary_size`` and combiner count; what a key without a row reads as, the job says.
        keys: Rows to keep, by name of the table. Ranges ``[(first, last), …]`` of keys, both
            included; an array of keys; or ``"looked_up"``: those that lookups ask for, by how often
            they do. Tables that are not there keep none.
        max_bytes: Most memory of the rows that are kept of one table. What does not fit is looked
            up. Unit: bytes.
        max_lag_s: Largest age of rows that are kept, at most a day. Unit: seconds.
        on_lag: ``"error"``, or ``"warn"``: older rows are served all the same.
        token: File with this reader's token, of the role reader.
        ca: File with the CA of the job's certificates.
        cert: File with this reader's certificate, of the role reader.
        key: File with its key.
        metrics_port: Port where Prometheus reads this reader's metrics; 0: none. It has a port of
            its own in each process, so ``ROPEWALK_METRICS_PORT``, which tasks read, is not for it.
        settings: Further settings by name, as in ``ROPEWALK_NAME`` variables.

    Raises:
        AddressInUseError: ``metrics_port`` is taken.
        ConfigurationError: Arguments or settings that are not valid, or a table that the job has
            otherwise.
        PeerLostError: There is no answer at the address.
        JoinTimeoutError: A server does not answer, or the job has no such table.
        AccessError: The job does not let this reader in.
        TooManyWorkersError: A server has no place for another reader.
        LimitExceededError: A server has no memory left to note changes for readers.
    """

    def __init__(
        self,
        chief: str | None,
        features: Iterable[FeatureConfig],
        *,
        keys: Mapping[str, Keys] | None = None,
        max_bytes: int = DEFAULT_CACHE_BYTES,
        max_lag_s: float = 10.0,
        on_lag: Literal["error", "warn"] = "error",
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
        metrics_port: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._features = by_name(list(features))
        tables = {feature.table.name: feature.table for feature in self._features.values()}
        wanted = checked_keys(keys or {}, tables)
        if on_lag not in ("error", "warn"):
            raise ConfigurationError(f'on_lag is "error" or "warn", not {on_lag!r}')
        if not 0 < max_lag_s <= _MAX_LAG_S or max_bytes < 1:
            raise ConfigurationError(
                f"max_lag_s={max_lag_s!r} must be more than 0 and at most {_MAX_LAG_S:g}, and "
                f"max_bytes={max_bytes!r} at least 1"
            )
        self._max_lag_s, self._on_lag = max_lag_s, on_lag
        self._rare_log = RareLog(log)
        self._closing = threading.Event()
        self._failure: RopewalkError | None = None
        files = {"token_file": token, "tls_ca": ca, "tls_cert": cert, "tls_key": key}
        stated = {name: file for name, file in files.items() if file} | dict(settings or {})
        own = with_own_job(load_settings(stated | {"metrics_port": metrics_port}))
        chief = chief or chief_of_cluster()
        quiet_grpc()
        self._session = ReaderSession(chief, own)
        self._kept: dict[str, FollowedTable] = {}
        self._metrics = MetricsPort(self._session.who.task, chief, own, self._samples)
        try:
            definitions = self._session.find(tables)
            for name, definition in definitions.items():
                check_table(tables[name], definition)
            self._kept = {
                name: FollowedTable(definitions[name], which, max_bytes, self._session)
                for name, which in wanted.items()
            }
            self._follow_all()
            self._metrics.start()
        except BaseException:
            self._session.close()
            raise
        if self._kept:
            new_thread("follow rows", self._follow, failed=self._end).start()

    # -- reading -------------------------------------------------------------------------------

    def lookup(
        self, ids: Mapping[str, Any], weights: Mapping[str, Any] | None = None
    ) -> dict[str, Array]:
        """Look up the rows of some features, combined for each example; see
        :meth:`Embeddings.lookup`.

        A key that has no row reads as its row would begin, or as zeros (``unknown``). Nothing is
        made, admitted or counted.

        Args:
            ids: Ids by name of the feature; as :meth:`Embeddings.lookup` takes them.
            weights: Weights by name of the feature.

        Returns:
            Arrays by name of the feature, as :meth:`Embeddings.lookup` returns them.

        Raises:
            KeyError, TypeError, ValueError, ShapeMismatchError: As :meth:`Embeddings.lookup`.
            StaleRowsError: Rows that are kept are older than ``max_lag_s``, and a server does not
                answer.
            PeerLostError: A server does not answer, or the job is over, and a row is not kept.
        """
        bags = FeatureBags(self._features, ids, weights)
        kept = self._usable()
        asked: dict[str, Array] = {}
        begun: dict[str, CachedLookup] = {}
        for use in bags.uses:
            name = use.table.name
            asked[name] = use.ids
            if name in kept:
                begun[name] = kept[name].rows.begin(use.ids)
                asked[name] = begun[name].wanted
        try:
            pulled = self._session.lookup_rows(
                {name: keys for name, keys in asked.items() if keys.size or name not in begun}
            )
        except PeerLostError as error:
            raise self._no_rows(error) from error
        rows: list[tuple[Array, Array | None]] = []
        for use in bags.uses:
            name = use.table.name
            if name not in begun:
                rows.append(pulled[name])
                continue
            new = rows_of(*pulled[name]) if name in pulled else begun[name].rows[:0]
            rows.append((kept[name].rows.finish(begun[name], new), begun[name].inverse))
        return bags.combined(rows)

    def snapshot(
        self,
        ids: Mapping[str, Any],
        weights: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = _CUT_S,
    ) -> RowsAtOneMoment:
        """Look up rows as :meth:`lookup` does, all of one moment of all servers.

        Every worker's pushes up to one number are in the rows, and none beyond: a consistent cut,
        which the chief takes for this call. Rows that are kept here are not used. It takes about as
        long as two heartbeats, and pushes wait for a moment; one is taken at a time.

        Args:
            ids: Ids by name of the feature, as for :meth:`lookup`.
            weights: Weights by name of the feature.
            timeout_s: Time to try again after a cut that came to nothing. Unit: seconds.

        Raises:
            CutVoidError: None could be taken in time.
            LimitExceededError: The rows of one server are more than ``max_message_bytes``.
            PeerLostError: The chief, or a server, does not answer.
        """
        bags = FeatureBags(self._features, ids, weights)
        wanted = {use.table.name: use.ids for use in bags.uses}
        rows, step, pushes = self._session.rows_at_a_cut(wanted, timeout_s)
        return RowsAtOneMoment(
            bags.combined([rows[use.table.name] for use in bags.uses]), step, pushes
        )

    @property
    def lag_s(self) -> float:
        """Largest age of the rows that are kept; 0 if none are kept. Unit: seconds."""
        now = time.monotonic()
        return max((now - table.as_of for table in self._kept.values()), default=0.0)

    @property
    def global_step(self) -> int:
        """Global step of the job, as far as this reader has heard."""
        return self._session.global_step

    @property
    def kept_rows(self) -> dict[str, int]:
        """Number of rows that are kept, by name of the table."""
        return {name: len(table.rows) for name, table in self._kept.items()}

    def close(self) -> None:
        """End the sessions. Idempotent."""
        self._closing.set()
        self._metrics.stop()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _samples(self) -> Iterator[Sample]:
        who = self._session.who
        yield from task_samples(who.task, who.job, draining=self._closing.is_set())
        yield from followed_samples(self._kept)
        yield Sample(READER_RECEIVED, self._session.received_bytes)

    # -- following -----------------------------------------------------------------------------

    def _usable(self) -> Mapping[str, FollowedTable]:
        """Find the tables whose kept rows may be read now."""
        if not self._kept or (lag_s := self.lag_s) <= self._max_lag_s:
            return self._kept
        if self._on_lag == "error":
            return {}
        self._rare_log.warning("%s", self._staleness(lag_s))
        return self._kept

    def _staleness(self, lag_s: float) -> str:
        why = f": {self._failure.message}" if self._failure is not None else ""
        return (
            f"rows that this reader keeps are {lag_s:.1f} s old, more than "
            f"max_lag_s={self._max_lag_s:g}{why}"
        )

    def _no_rows(self, error: PeerLostError) -> PeerLostError | StaleRowsError:
        if self._kept and (lag_s := self.lag_s) > self._max_lag_s and self._on_lag == "error":
            return StaleRowsError(
                f"{self._staleness(lag_s)}; and the servers do not answer: {error.message}. Is the "
                "job over? Make a new Reader for another one",
                lag_s=f"{lag_s:.3f}",
            )
        return error

    def _follow_all(self) -> None:
        for table in self._kept.values():
            table.follow()

    def _follow(self) -> None:
        while not self._closing.wait(self._max_lag_s / _ROUNDS_PER_LAG):
            try:
                self._follow_all()
                self._failure = None
            except RopewalkError as error:
                if self._closing.is_set():
                    return
                self._failure = error
                self._rare_log.warning("changed rows could not be read: %s", error)

    def _end(self, error: BaseException) -> None:
        self._failure = RopewalkError(f"following rows has failed: {error!r}")
