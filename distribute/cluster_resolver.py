"""``windlass.distribute.cluster_resolver``: the public names of the resolvers."""

from ..cluster.resolver import ClusterResolver
from ..cluster.sagemaker import SageMakerClusterResolver
from ..cluster.simple import SimpleClusterResolver, UnionClusterResolver
from ..cluster.slurm_resolver import SlurmClusterResolver
from ..cluster.template import TemplateClusterResolver
from ..cluster.tf_config import TFConfigClusterResolver
from ..cluster.volcano import VolcanoClusterResolver

UnionResolver = UnionClusterResolver  # TensorFlow's name

__all__ = [
    "ClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TemplateClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
    "VolcanoClusterResolver",
]
