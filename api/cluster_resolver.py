"""``ropewalk.distribute.cluster_resolver``: the public names of the resolvers."""

from typing import TYPE_CHECKING

from ..cluster.resolvers.resolver import ClusterResolver
from ..cluster.resolvers.sagemaker import SageMakerClusterResolver
from ..cluster.resolvers.simple import SimpleClusterResolver, UnionClusterResolver
from ..cluster.resolvers.slurm_resolver import SlurmClusterResolver
from ..cluster.resolvers.template import TemplateClusterResolver
from ..cluster.resolvers.tf_config import TFConfigClusterResolver
from ..cluster.resolvers.volcano import VolcanoClusterResolver
from ..core.public_face import public_getattr
from ..distribute.resolvers.compute_engine import GCEClusterResolver
from ..distribute.resolvers.kubernetes_resolver import (
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
)

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

if TYPE_CHECKING:
    from ..training.tpu_resolver import TPUClusterResolver

    __all__ += ["TPUClusterResolver"]
else:
    __getattr__ = public_getattr(
        "ropewalk.distribute.cluster_resolver",
        globals(),
        later={"TPUClusterResolver": "training.tpu_resolver:TPUClusterResolver"},
    )
