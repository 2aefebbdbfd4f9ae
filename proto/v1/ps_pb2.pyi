from google.protobuf import struct_pb2 as _struct_pb2
from . import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Eviction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICTION_UNSPECIFIED: _ClassVar[Eviction]
    EVICTION_LEAST_RECENT: _ClassVar[Eviction]
    EVICTION_LEAST_FREQUENT: _ClassVar[Eviction]

class ReplicaRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_ROLE_NONE: _ClassVar[ReplicaRole]
    REPLICA_ROLE_FOLLOWING: _ClassVar[ReplicaRole]
    REPLICA_ROLE_LEADING: _ClassVar[ReplicaRole]
    REPLICA_ROLE_GONE: _ClassVar[ReplicaRole]
EVICTION_UNSPECIFIED: Eviction
EVICTION_LEAST_RECENT: Eviction
EVICTION_LEAST_FREQUENT: Eviction
REPLICA_ROLE_NONE: ReplicaRole
REPLICA_ROLE_FOLLOWING: ReplicaRole
REPLICA_ROLE_LEADING: ReplicaRole
REPLICA_ROLE_GONE: ReplicaRole

class Initializer(_message.Message):
    __slots__ = ("name", "seed", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seed: int
    arguments: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., seed: _Optional[int] = ..., arguments: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ShardDefinition(_message.Message):
    __slots__ = ("variable", "full_shape", "dtype", "part", "num_parts", "row_offset", "rows", "initializer", "rule", "trainable", "table")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    FULL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTS_FIELD_NUMBER: _ClassVar[int]
    ROW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    variable: str
    full_shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: _common_pb2.DType
    part: int
    num_parts: int
    row_offset: int
    rows: int
    initializer: Initializer
    rule: _struct_pb2.Struct
    trainable: bool
    table: TableOptions
    def __init__(self, variable: _Optional[str] = ..., full_shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_common_pb2.DType, str]] = ..., part: _Optional[int] = ..., num_parts: _Optional[int] = ..., row_offset: _Optional[int] = ..., rows: _Optional[int] = ..., initializer: _Optional[_Union[Initializer, _Mapping]] = ..., rule: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., trainable: bool = ..., table: _Optional[_Union[TableOptions, _Mapping]] = ...) -> None: ...

class TableOptions(_message.Message):
    __slots__ = ("rule", "unknown_is_zero", "sightings", "sketch", "chance", "max_unseen_steps", "evicts", "row_norm", "table_norm", "memory_bytes")
    RULE_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_IS_ZERO_FIELD_NUMBER: _ClassVar[int]
    SIGHTINGS_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_UNSEEN_STEPS_FIELD_NUMBER: _ClassVar[int]
    EVICTS_FIELD_NUMBER: _ClassVar[int]
    ROW_NORM_FIELD_NUMBER: _ClassVar[int]
    TABLE_NORM_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    rule: _struct_pb2.Struct
    unknown_is_zero: bool
    sightings: Sightings
    sketch: SketchedSightings
    chance: float
    max_unseen_steps: int
    evicts: Eviction
    row_norm: float
    table_norm: float
    memory_bytes: int
    def __init__(self, rule: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., unknown_is_zero: bool = ..., sightings: _Optional[_Union[Sightings, _Mapping]] = ..., sketch: _Optional[_Union[SketchedSightings, _Mapping]] = ..., chance: _Optional[float] = ..., max_unseen_steps: _Optional[int] = ..., evicts: _Optional[_Union[Eviction, str]] = ..., row_norm: _Optional[float] = ..., table_norm: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Sightings(_message.Message):
    __slots__ = ("count", "max_candidates")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    count: int
    max_candidates: int
    def __init__(self, count: _Optional[int] = ..., max_candidates: _Optional[int] = ...) -> None: ...

class SketchedSightings(_message.Message):
    __slots__ = ("count", "counters")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    count: int
    counters: int
    def __init__(self, count: _Optional[int] = ..., counters: _Optional[int] = ...) -> None: ...

class DefineRequest(_message.Message):
    __slots__ = ("create", "shards", "checkpoint", "bind_variables", "bind_rule", "share", "names")
    FROM_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    BIND_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    BIND_RULE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    create: bool
    shards: _containers.RepeatedCompositeFieldContainer[ShardDefinition]
    checkpoint: str
    bind_variables: _containers.RepeatedScalarFieldContainer[str]
    bind_rule: _struct_pb2.Struct
    share: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, create: bool = ..., shards: _Optional[_Iterable[_Union[ShardDefinition, _Mapping]]] = ..., checkpoint: _Optional[str] = ..., bind_variables: _Optional[_Iterable[str]] = ..., bind_rule: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., share: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., **kwargs) -> None: ...

class HeldShard(_message.Message):
    __slots__ = ("shard", "initialized", "restored")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    shard: ShardDefinition
    initialized: bool
    restored: bool
    def __init__(self, shard: _Optional[_Union[ShardDefinition, _Mapping]] = ..., initialized: bool = ..., restored: bool = ...) -> None: ...

class DefineResponse(_message.Message):
    __slots__ = ("held", "held_bytes")
    HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldShard]
    held_bytes: int
    def __init__(self, held: _Optional[_Iterable[_Union[HeldShard, _Mapping]]] = ..., held_bytes: _Optional[int] = ...) -> None: ...

class PsCounters(_message.Message):
    __slots__ = ("pushes", "duplicates", "refused", "pulls", "bytes_in", "bytes_out", "variables", "shards", "value_bytes", "slot_bytes", "sessions", "labels", "global_step", "tables", "usage", "busiest")
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    BUSIEST_FIELD_NUMBER: _ClassVar[int]
    pushes: int
    duplicates: int
    refused: int
    pulls: int
    bytes_in: int
    bytes_out: int
    variables: int
    shards: int
    value_bytes: int
    slot_bytes: int
    sessions: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    global_step: int
    tables: _containers.RepeatedCompositeFieldContainer[TableCounters]
    usage: _common_pb2.ProcessUsage
    busiest: _containers.RepeatedCompositeFieldContainer[ShardCounters]
    def __init__(self, pushes: _Optional[int] = ..., duplicates: _Optional[int] = ..., refused: _Optional[int] = ..., pulls: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., variables: _Optional[int] = ..., shards: _Optional[int] = ..., value_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., global_step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableCounters, _Mapping]]] = ..., usage: _Optional[_Union[_common_pb2.ProcessUsage, _Mapping]] = ..., busiest: _Optional[_Iterable[_Union[ShardCounters, _Mapping]]] = ...) -> None: ...

class ShardCounters(_message.Message):
    __slots__ = ("name", "updates", "num_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    updates: int
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., updates: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class TableCounters(_message.Message):
    __slots__ = ("name", "rows", "num_bytes", "admitted", "refused", "full", "evicted", "disk_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    num_bytes: int
    admitted: int
    refused: int
    full: int
    evicted: int
    disk_bytes: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., num_bytes: _Optional[int] = ..., admitted: _Optional[int] = ..., refused: _Optional[int] = ..., full: _Optional[int] = ..., evicted: _Optional[int] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("chief", "chief_address", "lease_s", "may_leave", "replicated_process")
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    CHIEF_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MAY_LEAVE_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_PROCESS_FIELD_NUMBER: _ClassVar[int]
    chief: _common_pb2.Incarnation
    chief_address: str
    lease_s: float
    may_leave: bool
    replicated_process: int
    def __init__(self, chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., chief_address: _Optional[str] = ..., lease_s: _Optional[float] = ..., may_leave: bool = ..., replicated_process: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("ps_generation", "counters", "draining")
    PS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ps_generation: int
    counters: PsCounters
    draining: bool
    def __init__(self, ps_generation: _Optional[int] = ..., counters: _Optional[_Union[PsCounters, _Mapping]] = ..., draining: bool = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("chief_address", "phase", "job", "chief_silent_s", "last_generation", "shards", "global_step", "gives_way", "has_shares")
    CHIEF_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHIEF_SILENT_S_FIELD_NUMBER: _ClassVar[int]
    LAST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    GIVES_WAY_FIELD_NUMBER: _ClassVar[int]
    HAS_SHARES_FIELD_NUMBER: _ClassVar[int]
    chief_address: str
    phase: _common_pb2.JobPhase
    job: str
    chief_silent_s: float
    last_generation: int
    shards: int
    global_step: int
    gives_way: bool
    has_shares: bool
    def __init__(self, chief_address: _Optional[str] = ..., phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., job: _Optional[str] = ..., chief_silent_s: _Optional[float] = ..., last_generation: _Optional[int] = ..., shards: _Optional[int] = ..., global_step: _Optional[int] = ..., gives_way: bool = ..., has_shares: bool = ...) -> None: ...

class SaveShardsRequest(_message.Message):
    __slots__ = ("checkpoint", "probe", "share", "cut", "base", "may_be_base", "expected_ps_generation", "trace")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_BASE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    probe: str
    share: int
    cut: int
    base: str
    may_be_base: bool
    expected_ps_generation: int
    trace: bytes
    def __init__(self, checkpoint: _Optional[str] = ..., probe: _Optional[str] = ..., share: _Optional[int] = ..., cut: _Optional[int] = ..., base: _Optional[str] = ..., may_be_base: bool = ..., expected_ps_generation: _Optional[int] = ..., trace: _Optional[bytes] = ...) -> None: ...

class SavedFile(_message.Message):
    __slots__ = ("name", "num_bytes", "header_bytes", "header_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADER_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bytes: int
    header_bytes: int
    header_digest: str
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ..., header_bytes: _Optional[int] = ..., header_digest: _Optional[str] = ...) -> None: ...

class SavedTensor(_message.Message):
    __slots__ = ("variable", "slot", "row_offset", "rows", "file", "tensor", "digest", "num_bytes", "part")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ROW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    variable: str
    slot: str
    row_offset: int
    rows: int
    file: str
    tensor: str
    digest: str
    num_bytes: int
    part: int
    def __init__(self, variable: _Optional[str] = ..., slot: _Optional[str] = ..., row_offset: _Optional[int] = ..., rows: _Optional[int] = ..., file: _Optional[str] = ..., tensor: _Optional[str] = ..., digest: _Optional[str] = ..., num_bytes: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class SavedShard(_message.Message):
    __slots__ = ("shard", "version", "updates", "block", "since_base")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SINCE_BASE_FIELD_NUMBER: _ClassVar[int]
    shard: ShardDefinition
    version: int
    updates: int
    block: int
    since_base: bool
    def __init__(self, shard: _Optional[_Union[ShardDefinition, _Mapping]] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., block: _Optional[int] = ..., since_base: bool = ...) -> None: ...

class AppliedPush(_message.Message):
    __slots__ = ("block", "sequence")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    block: int
    sequence: int
    def __init__(self, block: _Optional[int] = ..., sequence: _Optional[int] = ..., **kwargs) -> None: ...

class SaveShardsResponse(_message.Message):
    __slots__ = ("tensors", "shards", "applied", "global_step", "files", "model_dir", "pushes")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[SavedTensor]
    shards: _containers.RepeatedCompositeFieldContainer[SavedShard]
    applied: _containers.RepeatedCompositeFieldContainer[AppliedPush]
    global_step: int
    files: _containers.RepeatedCompositeFieldContainer[SavedFile]
    model_dir: str
    pushes: int
    def __init__(self, tensors: _Optional[_Iterable[_Union[SavedTensor, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[SavedShard, _Mapping]]] = ..., applied: _Optional[_Iterable[_Union[AppliedPush, _Mapping]]] = ..., global_step: _Optional[int] = ..., files: _Optional[_Iterable[_Union[SavedFile, _Mapping]]] = ..., model_dir: _Optional[str] = ..., pushes: _Optional[int] = ...) -> None: ...

class VerifyShardsRequest(_message.Message):
    __slots__ = ("checkpoint", "files")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, checkpoint: _Optional[str] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyShardsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndJobRequest(_message.Message):
    __slots__ = ("phase", "reason", "began_again")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AGAIN_FIELD_NUMBER: _ClassVar[int]
    phase: _common_pb2.JobPhase
    reason: str
    began_again: bool
    def __init__(self, phase: _Optional[_Union[_common_pb2.JobPhase, str]] = ..., reason: _Optional[str] = ..., began_again: bool = ...) -> None: ...

class EndJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeadShareRequest(_message.Message):
    __slots__ = ("share", "epoch", "followers", "chief", "leader_ended")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    LEADER_ENDED_FIELD_NUMBER: _ClassVar[int]
    share: int
    epoch: int
    followers: _containers.RepeatedCompositeFieldContainer[_common_pb2.Task]
    chief: _common_pb2.Incarnation
    leader_ended: bool
    def __init__(self, share: _Optional[int] = ..., epoch: _Optional[int] = ..., followers: _Optional[_Iterable[_Union[_common_pb2.Task, _Mapping]]] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., leader_ended: bool = ...) -> None: ...

class LeadShareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandOverShareRequest(_message.Message):
    __slots__ = ("share", "epoch", "chief", "successor", "successor_address", "address")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    share: int
    epoch: int
    chief: _common_pb2.Incarnation
    successor: _common_pb2.Task
    successor_address: str
    address: str
    def __init__(self, share: _Optional[int] = ..., epoch: _Optional[int] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., successor: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., successor_address: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class HandOverShareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GiveUpShareRequest(_message.Message):
    __slots__ = ("share", "epoch", "chief")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    share: int
    epoch: int
    chief: _common_pb2.Incarnation
    def __init__(self, share: _Optional[int] = ..., epoch: _Optional[int] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ...) -> None: ...

class GiveUpShareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyShareRequest(_message.Message):
    __slots__ = ("share", "epoch", "follower", "address", "chief")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    share: int
    epoch: int
    follower: _common_pb2.Task
    address: str
    chief: _common_pb2.Incarnation
    def __init__(self, share: _Optional[int] = ..., epoch: _Optional[int] = ..., follower: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., address: _Optional[str] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ...) -> None: ...

class CopyShareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchSharesRequest(_message.Message):
    __slots__ = ("seen", "chief")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    seen: int
    chief: _common_pb2.Incarnation
    def __init__(self, seen: _Optional[int] = ..., chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ...) -> None: ...

class WatchSharesResponse(_message.Message):
    __slots__ = ("changes", "ps_generation", "draining", "shares")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    PS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    changes: int
    ps_generation: int
    draining: bool
    shares: _containers.RepeatedCompositeFieldContainer[ShareState]
    def __init__(self, changes: _Optional[int] = ..., ps_generation: _Optional[int] = ..., draining: bool = ..., shares: _Optional[_Iterable[_Union[ShareState, _Mapping]]] = ...) -> None: ...

class ShareState(_message.Message):
    __slots__ = ("share", "role", "epoch", "is_whole", "followers", "held_bytes", "pushes", "received_bytes")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    share: int
    role: ReplicaRole
    epoch: int
    is_whole: bool
    followers: _containers.RepeatedCompositeFieldContainer[FollowerState]
    held_bytes: int
    pushes: int
    received_bytes: int
    def __init__(self, share: _Optional[int] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., epoch: _Optional[int] = ..., is_whole: bool = ..., followers: _Optional[_Iterable[_Union[FollowerState, _Mapping]]] = ..., held_bytes: _Optional[int] = ..., pushes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class FollowerState(_message.Message):
    __slots__ = ("task", "has_joined", "is_lost", "position", "acknowledged", "is_needed", "copied_bytes")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HAS_JOINED_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    IS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    task: _common_pb2.Task
    has_joined: bool
    is_lost: bool
    position: int
    acknowledged: int
    is_needed: bool
    copied_bytes: int
    def __init__(self, task: _Optional[_Union[_common_pb2.Task, _Mapping]] = ..., has_joined: bool = ..., is_lost: bool = ..., position: _Optional[int] = ..., acknowledged: _Optional[int] = ..., is_needed: bool = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class BeginCutRequest(_message.Message):
    __slots__ = ("chief", "share", "cut", "workers", "hold_s", "with_slots", "may_be_base", "reader", "rows_only")
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    WITH_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_BASE_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    ROWS_ONLY_FIELD_NUMBER: _ClassVar[int]
    chief: _common_pb2.Incarnation
    share: int
    cut: int
    workers: _containers.RepeatedCompositeFieldContainer[_common_pb2.Incarnation]
    hold_s: float
    with_slots: bool
    may_be_base: bool
    reader: _common_pb2.Incarnation
    rows_only: bool
    def __init__(self, chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., share: _Optional[int] = ..., cut: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[_common_pb2.Incarnation, _Mapping]]] = ..., hold_s: _Optional[float] = ..., with_slots: bool = ..., may_be_base: bool = ..., reader: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., rows_only: bool = ...) -> None: ...

class BeginCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MarkCutRequest(_message.Message):
    __slots__ = ("share", "cut", "sequence", "pushes")
    FROM_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    share: int
    cut: int
    sequence: int
    pushes: int
    def __init__(self, share: _Optional[int] = ..., cut: _Optional[int] = ..., sequence: _Optional[int] = ..., pushes: _Optional[int] = ..., **kwargs) -> None: ...

class MarkCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishCutRequest(_message.Message):
    __slots__ = ("chief", "share", "cut")
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    chief: _common_pb2.Incarnation
    share: int
    cut: int
    def __init__(self, chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., share: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class FinishCutResponse(_message.Message):
    __slots__ = ("void_because", "global_step", "marks")
    VOID_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    void_because: str
    global_step: int
    marks: _containers.RepeatedCompositeFieldContainer[CutMark]
    def __init__(self, void_because: _Optional[str] = ..., global_step: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[CutMark, _Mapping]]] = ...) -> None: ...

class CutMark(_message.Message):
    __slots__ = ("sequence", "pushes")
    FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    pushes: int
    def __init__(self, sequence: _Optional[int] = ..., pushes: _Optional[int] = ..., **kwargs) -> None: ...

class ReadCutRequest(_message.Message):
    __slots__ = ("share", "cut", "piece")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    share: int
    cut: int
    piece: int
    def __init__(self, share: _Optional[int] = ..., cut: _Optional[int] = ..., piece: _Optional[int] = ..., **kwargs) -> None: ...

class ReadCutResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[CutValues]
    def __init__(self, values: _Optional[_Iterable[_Union[CutValues, _Mapping]]] = ...) -> None: ...

class CutValues(_message.Message):
    __slots__ = ("variable", "full_shape", "dtype", "start", "values")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    FULL_SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    variable: str
    full_shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: _common_pb2.DType
    start: int
    values: bytes
    def __init__(self, variable: _Optional[str] = ..., full_shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_common_pb2.DType, str]] = ..., start: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class EndCutRequest(_message.Message):
    __slots__ = ("chief", "share", "cut")
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    chief: _common_pb2.Incarnation
    share: int
    cut: int
    def __init__(self, chief: _Optional[_Union[_common_pb2.Incarnation, _Mapping]] = ..., share: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class EndCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("kind", "argument")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    argument: str
    def __init__(self, kind: _Optional[str] = ..., argument: _Optional[str] = ...) -> None: ...

class AskResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...
