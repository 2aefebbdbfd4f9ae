"""The option that says of which cluster a command shows a job, or all jobs."""

import click

from ...core.settings import CLUSTER_VARIABLE

cluster_option = click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The chief of a standalone cluster, of which JOB is a job; without JOB: all its jobs. A "
    "JOB that is neither an address nor a folder is looked for at the cluster of "
    f"{CLUSTER_VARIABLE}.",
)
