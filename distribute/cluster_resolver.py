"""``windlass.distribute.cluster_resolver``: the public names of the resolvers."""

from ..cluster.resolver import ClusterResolver
from ..cluster.simple import SimpleClusterResolver, UnionClusterResolver
from ..cluster.template import TemplateClusterResolver
from ..cluster.tf_config import TFConfigClusterResolver

UnionResolver = UnionClusterResolver  # TensorFlow's name

__all__ = [
    "ClusterResolver",
    "SimpleClusterResolver",
    "TFConfigClusterResolver",
    "TemplateClusterResolver",
    "UnionClusterResolver",
    "UnionResolver",
]
