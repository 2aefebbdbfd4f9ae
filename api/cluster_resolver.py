"""``ropewalk.distribute.cluster_resolver``: the public names of the resolvers."""

from typing import TYPE_CHECKING

from ..cluster.resolvers.resolver import (
    ClusterResolver,
    SimpleClusterResolver,
    UnionClusterResolver,
)
from ..cluster.resolvers.sagemaker import SageMakerClusterResolver
from ..cluster.resolvers.slurm import SlurmClusterResolver
from ..cluster.resolvers.template import TemplateClusterResolver
from ..cluster.resolvers.tf_config import TFConfigClusterResolver
from ..cluster.resolvers.volcano import VolcanoClusterResolver
from ..core.public_face import public_getattr
from ..distribute.compute_engine import GCEClusterResolver

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
    from ..annexes.jax_bridge.tpu_resolver import TPUClusterResolver
    from ..annexes.kubernetes.resolver import (
        KubernetesClusterResolver,
        KubernetesExecutableLocation,
    )

    __all__ += ["TPUClusterResolver"]
else:
    __getattr__ = public_getattr(
        "ropewalk.distribute.cluster_resolver",
        globals(),
        later={
            "KubernetesClusterResolver": "annexes.kubernetes.resolver:KubernetesClusterResolver",
            "KubernetesExecutableLocation": (
                "annexes.kubernetes.resolver:KubernetesExecutableLocation"
            ),
            "TPUClusterResolver": "annexes.jax_bridge.tpu_resolver:TPUClusterResolver",
        },
    )
