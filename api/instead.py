"""Names of TensorFlow that are not here, and what to write instead: for the AttributeError of a
program that was moved by replacing ``tf`` by ``rw``.
"""

from collections.abc import Mapping

_BRIDGES = "bring NumPy, JAX, PyTorch or Keras: docs/bridges.md"
_NUMPY = "values are NumPy arrays: use NumPy's"
_KERAS = "Keras 3 itself is used, in strategy.scope(): docs/keras.md"
_GRAPHS = "functions run as Python: leave it out"
_FILES = "`rw.data.from_files(paths, read)`, where `read(path)` gives "
_METHOD = "it is a method of rw.data.Dataset, in small letters"
_ITERATOR = "iter(dataset) has get_next and get_next_as_optional"
_DEVICES = "rw.config.list_logical_devices() lists devices, as names"
_CHECKPOINTS = "use latest_checkpoint, list_variables and load_checkpoint"

INSTEAD: Mapping[str, Mapping[str, str]] = {
    "ropewalk": {
        "GradientTape": f"gradients come from JAX, PyTorch, Keras or by hand; {_BRIDGES}",
        "RaggedTensor": "use rw.embedding.Ragged for bags of ids, and NumPy for the rest",
        "Tensor": _NUMPY,
        "TensorShape": "shapes are tuples",
        "TensorSpec": "use rw.data.ArraySpec",
        "compat": "what it has of tf.distribute is in rw.distribute: docs/tf-distribute.md",
        "constant": "use numpy.asarray",
        "convert_to_tensor": "use numpy.asarray",
        "dtypes": "dtypes are NumPy's",
        "experimental": "see the list of names: docs/tf-distribute.md",
        "feature_column": "use rw.embedding, or Keras' preprocessing layers: docs/embeddings.md",
        "float32": "dtypes are NumPy's: numpy.float32",
        "function": _GRAPHS,
        "gradients": f"gradients come from JAX, PyTorch, Keras or by hand; {_BRIDGES}",
        "int32": "dtypes are NumPy's: numpy.int32",
        "int64": "dtypes are NumPy's: numpy.int64",
        "io": "use Python's files, or fsspec",
        "keras": _KERAS,
        "layers": _KERAS,
        "losses": _KERAS,
        "math": _NUMPY,
        "matmul": _NUMPY,
        "ones": _NUMPY,
        "print": "it is Python's own",
        "reduce_mean": _NUMPY,
        "reduce_sum": _NUMPY,
        "saved_model": "use Keras' model.save or rw.train.export_checkpoint: docs/exports.md",
        "tpu": "rw.distribute.TPUStrategy runs on JAX's devices: docs/jax.md",
        "types": "use rw.distribute.DistributedValues, PerReplica and Mirrored",
        "zeros": _NUMPY,
    },
    "ropewalk.config": {
        "LogicalDevice": _DEVICES,
        "LogicalDeviceConfiguration": "use rw.config.set_logical_cpu_devices(n)",
        "experimental": "tasks connect by TF_CONFIG or `ropewalk run`; GPUs need no setting",
        "experimental_connect_to_cluster": "tasks connect by TF_CONFIG or `ropewalk run`",
        "experimental_connect_to_host": "tasks connect by TF_CONFIG or `ropewalk run`",
        "experimental_run_functions_eagerly": _GRAPHS,
        "get_logical_device_configuration": _DEVICES,
        "list_physical_devices": _DEVICES,
        "run_functions_eagerly": _GRAPHS,
        "set_logical_device_configuration": "use rw.config.set_logical_cpu_devices(n)",
        "set_soft_device_placement": "leave it out",
        "set_visible_devices": "CUDA_VISIBLE_DEVICES hides GPUs",
        "threading": "leave it out: OMP_NUM_THREADS and ROPEWALK_… settings",
    },
    "ropewalk.data": {
        "DatasetSpec": "`dataset.element_spec` has shapes and dtypes, as ArraySpec",
        "FixedLengthRecordDataset": f"{_FILES}the records of a file",
        "Iterator": _ITERATOR,
        "IteratorSpec": _ITERATOR,
        "NumpyIterator": _ITERATOR,
        "TFRecordDataset": f"{_FILES}the records of a file: the `tfrecord` package reads them",
        "TextLineDataset": f"{_FILES}the lines of a file: `open(path)` does",
        "ThreadingOptions": "`options.threading` is there, of no effect",
    },
    "ropewalk.data.experimental": {
        "Counter": _METHOD,
        "CsvDataset": f"{_FILES}the rows of a file: Python's csv reads them",
        "RandomDataset": "use rw.data.Dataset.random",
        "assert_cardinality": "leave it out: `dataset.cardinality()` says how many there are",
        "bucket_by_sequence_length": _METHOD,
        "cardinality": _METHOD,
        "choose_from_datasets": _METHOD,
        "copy_to_device": "leave it out: elements are arrays of NumPy",
        "dense_to_ragged_batch": "`dataset.padded_batch(n)`",
        "enumerate_dataset": "`dataset.enumerate()`",
        "get_single_element": _METHOD,
        "group_by_window": _METHOD,
        "make_csv_dataset": f"{_FILES}the batches of a file: Python's csv reads them",
        "map_and_batch": "`dataset.map(f).batch(n)`",
        "parallel_interleave": "`dataset.interleave(f)`",
        "prefetch_to_device": "`dataset.prefetch(n)`: elements are arrays of NumPy",
        "sample_from_datasets": _METHOD,
        "scan": _METHOD,
        "shuffle_and_repeat": "`dataset.shuffle(n).repeat()`",
        "take_while": _METHOD,
        "unbatch": _METHOD,
        "unique": _METHOD,
    },
    "ropewalk.distribute.experimental": {
        "PreemptionWatcher": "use PreemptionCheckpointHandler, which watches for SIGTERM itself",
        "rpc": "calls of functions between tasks are not training: use gRPC",
    },
    "ropewalk.metrics": {
        "BinaryCrossentropy": "MeanMetricWrapper(fn) is the mean of a function of yours",
        "CategoricalCrossentropy": "MeanMetricWrapper(fn) is the mean of a function of yours",
        "MeanIoU": "Keras' metrics work under `fit`: docs/keras.md",
        "SparseCategoricalCrossentropy": "MeanMetricWrapper(fn) is the mean of a function of yours",
    },
    "ropewalk.nn": {
        "relu": _NUMPY,
        "sigmoid": _NUMPY,
        "softmax": _NUMPY,
        "sparse_softmax_cross_entropy_with_logits": f"write it with NumPy, or {_BRIDGES}",
    },
    "ropewalk.optimizers": {
        "Adafactor": "register_rule makes a rule of your own: docs/training.md",
        "Muon": "register_rule makes a rule of your own: docs/training.md",
        "deserialize": "construct it with the arguments of get_config()",
        "get": "construct it by its class: rw.optimizers.Adam(1e-3)",
        "legacy": "its optimizers are those of rw.optimizers",
        "schedules": "its names are those of rw.optimizers: rw.optimizers.CosineDecay",
        "serialize": "use its class and get_config()",
    },
    "ropewalk.random": {
        "normal": "rw.random.Generator.from_seed(1).normal(shape), a stream for each replica",
        "set_seed": "rw.random.Generator.from_seed(seed); datasets take seeds of their own",
        "uniform": "rw.random.Generator.from_seed(1).uniform(shape), a stream for each replica",
    },
    "ropewalk.train": {
        "CheckpointOptions": _CHECKPOINTS,
        "CheckpointView": _CHECKPOINTS,
        "ExponentialMovingAverage": "`average.assign_add(0.01 * (w - average))` of a variable "
        "that is not trainable",
        "checkpoints_iterator": "rw.training.SidecarEvaluator evaluates every new checkpoint",
        "get_checkpoint_state": _CHECKPOINTS,
        "get_or_create_global_step": "use strategy.global_step",
    },
}
"""Public module -> name -> what to write instead."""
