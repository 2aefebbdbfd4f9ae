"""Names of ``tf.estimator`` and of ``tf.compat.v1.train``'s hooks that are not here, and what to
write instead.
"""

_CANNED = "write it as a model of Keras or JAX, ten lines: docs/canned-estimators.md"
_HEAD = "its loss and metrics are lines of your model_fn: docs/canned-estimators.md"
_EXPORT = "EstimatorSpec(export_outputs={'file name': write}) writes what is exported"
_TPU = "rw.distribute.TPUStrategy(…) as RunConfig's train_distribute"
_PARSE = "there are no protocol buffers to parse: read records in input_fn"

ELSEWHERE: dict[str, str] = {
    "BaselineClassifier": _CANNED,
    "BaselineEstimator": _CANNED,
    "BaselineRegressor": _CANNED,
    "BinaryClassHead": _HEAD,
    "BoostedTreesClassifier": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "BoostedTreesEstimator": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "BoostedTreesRegressor": "not trained by gradients; take XGBoost, LightGBM or scikit-learn",
    "DNNClassifier": _CANNED,
    "DNNEstimator": _CANNED,
    "DNNLinearCombinedClassifier": _CANNED,
    "DNNLinearCombinedEstimator": _CANNED,
    "DNNLinearCombinedRegressor": _CANNED,
    "DNNRegressor": _CANNED,
    "FeedFnHook": "nothing is fed: input_fn gives the batches, and params what model_fn needs",
    "GlobalStepWaiterHook": "RunConfig(experimental_max_worker_delay_secs=…) says how much later a "
    "worker begins",
    "Head": _HEAD,
    "LinearClassifier": _CANNED,
    "LinearEstimator": _CANNED,
    "LinearRegressor": _CANNED,
    "LogisticRegressionHead": _HEAD,
    "MultiClassHead": _HEAD,
    "MultiHead": _HEAD,
    "MultiLabelHead": _HEAD,
    "PoissonRegressionHead": _HEAD,
    "RegressionHead": _HEAD,
    "VocabInfo": "warm-start the table under its name, and give vocabularies one order",
    "classifier_parse_example_spec": _PARSE,
    "regressor_parse_example_spec": _PARSE,
    "export": "rw.estimator.ServingInputReceiver and build_raw_serving_input_receiver_fn; "
    + _EXPORT,
    "pandas_input_fn": "rw.estimator.numpy_input_fn({name: frame[name].to_numpy() for name in "
    "frame}, y, …)",
    "tpu": _TPU,
    "TPUEstimator": "Estimator, with " + _TPU,
    "TPUEstimatorSpec": "EstimatorSpec, with " + _TPU,
}
"""Names of ``tf.estimator``, its v1 names, and ``tf.compat.v1.train``'s hooks."""

EXPERIMENTAL: dict[str, str] = {
    "KMeans": "scikit-learn's MiniBatchKMeans",
    "LinearSDCA": "rw.optimizers.Ftrl: docs/canned-estimators.md",
    "RNNClassifier": _CANNED,
    "RNNEstimator": _CANNED,
    "build_raw_supervised_input_receiver_fn": _EXPORT,
    "call_logit_fn": "call your function",
    "dnn_logit_fn_builder": _CANNED,
    "linear_logit_fn_builder": _CANNED,
    "make_stop_at_checkpoint_step_hook": "rw.estimator.StopAtStepHook(last_step=…)",
}
"""Names of ``tf.estimator.experimental``."""
