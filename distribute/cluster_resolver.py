"""``windlass.distribute.cluster_resolver``: the public names of the resolvers."""

from importlib import import_module
from typing import Any

from ..cluster.resolver import ClusterResolver
from ..cluster.sagemaker import SageMakerClusterResolver
from ..cluster.simple import SimpleClusterResolver, UnionClusterResolver
from ..cluster.slurm_resolver import SlurmClusterResolver
from ..cluster.template import TemplateClusterResolver
from ..cluster.tf_config import TFConfigClusterResolver
from ..cluster.volcano import VolcanoClusterResolver
from ..core.public_names import missing_name
from .resolvers.compute_engine import GCEClusterResolver
from .resolvers.kubernetes_pods import KubernetesExecutableLocation
from .resolvers.kubernetes_resolver import KubernetesClusterResolver

UnionResolver = UnionClusterResolver  # TensorFlow's name

__all__ = [
    "ClusterResolver",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TemplateClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
    "VolcanoClusterResolver",
]


def __getattr__(name: str) -> Any:
    if name == "TPUClusterResolver":  # by name, since frameworks are known above this room alone
        return import_module("windlass.training.tpu_resolver").TPUClusterResolver
    raise missing_name(
        "windlass.distribute.cluster_resolver", name, (*__all__, "TPUClusterResolver")
    )
