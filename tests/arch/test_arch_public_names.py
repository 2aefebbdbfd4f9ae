"""The public names are frozen: a change here is a change for users, and belongs in CHANGELOG."""

import importlib

import pytest

import ropewalk

NAMES = {
    "ropewalk": """
        Checkpoint ClusterSpec IndexedSlices Initializer Variable VariableAggregation
        VariableSynchronization config connect data device distribute embedding errors estimator
        metrics nn optimizers random summary testing train training variable_creator_scope
    """,
    "ropewalk.distribute": """
        AggregatingVariable CentralStorageStrategy CollectiveAllReduceStrategy
        CommunicationImplementation CommunicationOptions MultiWorkerMirroredStrategy
        CrossDeviceOps DistributedDataset DistributedIterator DistributedValues DistributedVariable
        HierarchicalCopyAllReduce InputContext InputOptions InputReplicationMode Mirrored
        MirroredStrategy MirroredVariable NcclAllReduce OneDeviceStrategy ParameterServerStrategy
        PerReplica PsSnapshot ReduceOp ReductionToOneDevice ReplicaContext RunOptions
        ShardedVariable Strategy StrategyExtended SyncOnReadVariable ValueContext WireFormat
        cluster_resolver coordinator experimental experimental_set_strategy get_loss_reduction
        get_replica_context get_strategy has_strategy in_cross_replica_context partitioners
        placement
    """,
    "ropewalk.data": """
        AUTOTUNE INFINITE_CARDINALITY SHARD_HINT UNKNOWN_CARDINALITY ArraySpec AutoShardPolicy
        Dataset DistributeOptions Options as_dataset experimental from_arrays from_files from_index
    """,
    "ropewalk.data.experimental": """
        AUTOTUNE INFINITE_CARDINALITY SHARD_HINT UNKNOWN_CARDINALITY AutoShardPolicy
        DistributeOptions
    """,
    "ropewalk.metrics": """
        AUC Accuracy BinaryAccuracy CategoricalAccuracy Mean MeanAbsoluteError MeanMetricWrapper
        MeanSquaredError Metric Precision Recall RootMeanSquaredError SparseCategoricalAccuracy
        SparseTopKCategoricalAccuracy Sum TopKCategoricalAccuracy
    """,
    "ropewalk.nn": """
        compute_average_loss embedding_lookup embedding_lookup_sparse
        embedding_lookup_sparse_gradient scale_regularization_loss
    """,
    "ropewalk.embedding": """
        Chance Embeddings FeatureConfig GroupFtrl Lookup Ragged Reader RowsAtOneMoment
        RowwiseAdagrad Sightings SketchedSightings TableConfig export_table hash_strings
        import_tables
    """,
    "ropewalk.random": "Generator",
    "ropewalk.optimizers": """
        SGD Adadelta Adagrad Adam AdamW Adamax CosineDecay CosineDecayRestarts ExponentialDecay Ftrl
        InverseTimeDecay Lamb LearningRateSchedule Lion Nadam Optimizer PiecewiseConstantDecay
        PolynomialDecay RMSprop register_rule
    """,
    "ropewalk.summary": """
        SummaryWriter create_file_writer create_noop_writer flush histogram hparams image record_if
        scalar should_record_summaries text
    """,
    "ropewalk.train": """
        Checkpoint CheckpointManager CheckpointReader ClusterSpec export_checkpoint
        latest_checkpoint list_variables load_checkpoint load_variable
    """,
    "ropewalk.training": """
        ArrayStore ModelStep SidecarEvaluator export is_evaluator read_evaluations report save
        step_times task_type
    """,
    "ropewalk.estimator": """
        BestExporter CheckpointSaverHook CheckpointSaverListener DistributeConfig Estimator
        EstimatorSpec EvalSpec Exporter FinalExporter FinalOpsHook LatestExporter LoggingTensorHook
        ModeKeys NanLossDuringTrainingError NanTensorHook ProfilerHook RunConfig Scaffold
        SecondOrStepTimer ServingInputReceiver SessionRunArgs SessionRunContext SessionRunHook
        SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook TrainSpec WarmStartSettings
        add_metrics build_raw_serving_input_receiver_fn experimental get_global_step metrics
        numpy_input_fn once read_eval_metrics record train_and_evaluate
    """,
    "ropewalk.testing": "FaultPlan LocalCluster ProcessResult TaskResult run_script",
}


def module_of(name: str) -> object:
    # ropewalk.optimizers is a name of ropewalk, not a module at that place.
    module: object = importlib.import_module("ropewalk")
    for part in name.split(".")[1:]:
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_frozen(name: str) -> None:
    module = module_of(name)
    exported: list[str] = module.__all__  # type: ignore[attr-defined]
    assert sorted(exported) == sorted(NAMES[name].split())
    assert len(set(exported)) == len(exported)
    for item in exported:
        assert getattr(module, item) is not None


def test_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from ropewalk import *", namespace)  # noqa: S102
    assert set(namespace) - {"__builtins__"} == set(NAMES["ropewalk"].split())


def test_dir_lists_them_and_the_version() -> None:
    assert dir(ropewalk) == sorted([*NAMES["ropewalk"].split(), "__version__"])
    assert isinstance(ropewalk.__version__, str)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ropewalk.nothing


PUBLIC = [
    *NAMES, "ropewalk.config", "ropewalk.distribute.cluster_resolver",
    "ropewalk.distribute.coordinator", "ropewalk.distribute.experimental",
]  # fmt: skip


@pytest.mark.parametrize("path", PUBLIC)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(path: str) -> None:
    module = ropewalk
    for part in path.split(".")[1:]:
        module = getattr(module, part)
    name = max(module.__all__, key=len)
    with pytest.raises(AttributeError, match=f"no attribute '{name}s_'; did you mean '{name}'\\?"):
        getattr(module, f"{name}s_")
    with pytest.raises(AttributeError, match=r"no attribute 'Quxxyzzy'$"):
        _ = module.Quxxyzzy
    assert not hasattr(module, "__wrapped__")


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    for module, wrong, right in (
        (ropewalk.distribute, "MirrorStrategy", "MirroredStrategy"),
        (ropewalk.distribute, "TpuStrategy", "TPUStrategy"),
        (ropewalk.optimizers, "adam", "Adam"),
        (ropewalk.errors, "PeerLost", "PeerLostError"),
        (ropewalk.distribute.partitioners, "MinSizePartitoner", "MinSizePartitioner"),
        (ropewalk, "optimiser", "optimizers"),
        (ropewalk.training, "Torch", "torch"),
        (ropewalk.estimator, "Estimater", "Estimator"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{wrong}'; did you mean '{right}'"):
            getattr(module, wrong)
