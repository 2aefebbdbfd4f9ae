"""``windlass.distribute.cluster_resolver``: the public names of the resolvers."""

from typing import TYPE_CHECKING

from ..cluster.resolver import ClusterResolver
from ..cluster.sagemaker import SageMakerClusterResolver
from ..cluster.simple import SimpleClusterResolver, UnionClusterResolver
from ..cluster.slurm_resolver import SlurmClusterResolver
from ..cluster.template import TemplateClusterResolver
from ..cluster.tf_config import TFConfigClusterResolver
from ..cluster.volcano import VolcanoClusterResolver
from ..core.public_face import public_getattr
from ..distribute.resolvers.compute_engine import GCEClusterResolver
from ..distribute.resolvers.kubernetes_pods import KubernetesExecutableLocation
from ..distribute.resolvers.kubernetes_resolver import KubernetesClusterResolver

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
        "windlass.distribute.cluster_resolver",
        globals(),
        later={"TPUClusterResolver": "training.tpu_resolver:TPUClusterResolver"},
    )
