"""``--cluster HOST:PORT``: where a standalone cluster is reached."""

import click

from ....core.settings import CLUSTER_VARIABLE

cluster_option = click.option(
    "--cluster",
    required=True,
    envvar=CLUSTER_VARIABLE,
    metavar="HOST:PORT",
    help=f"The chief of the cluster; also in {CLUSTER_VARIABLE}.",
)
