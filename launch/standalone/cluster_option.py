"""``--cluster HOST:PORT``: where a standalone cluster is reached."""

import click

cluster_option = click.option(
    "--cluster",
    required=True,
    envvar="WINDLASS_CLUSTER",
    metavar="HOST:PORT",
    help="The chief of the cluster; also in WINDLASS_CLUSTER.",
)
