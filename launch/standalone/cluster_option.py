"""``--cluster HOST:PORT``: where a standalone cluster is reached."""

import click

CLUSTER_VARIABLE = "WINDLASS_CLUSTER"

cluster_option = click.option(
    "--cluster",
    required=True,
    envvar=CLUSTER_VARIABLE,
    metavar="HOST:PORT",
    help=f"The chief of the cluster; also in {CLUSTER_VARIABLE}.",
)
