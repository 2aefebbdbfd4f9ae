"""``ropewalk warm-kernels``."""

import click

from ...core.errors import ConfigurationError
from ...core.terminal import counted
from ..screen.plain import echo


@click.command("warm-kernels")
@click.option(
    "--kernel-cache",
    help="Folder of the cache. Default: ROPEWALK_KERNEL_CACHE, or the folder a ps chooses.",
)
def warm_kernels_command(kernel_cache: str | None) -> None:
    """Compile all kernels into the cache ahead of time, e.g. while an image is built.

    Run it as the user who will run the tasks: files of other users are not loaded.
    """
    from ...core.settings import load_settings
    from ...engine.library import KernelLibrary

    library = KernelLibrary(load_settings({"kernel_cache": kernel_cache}).kernel_cache)
    folder = library.folder
    for refusal in folder.refused:
        echo(f"not used: {refusal}", err=True)
    if folder.path is None:
        raise ConfigurationError(
            "there is no folder to keep kernels in; name one with --kernel-cache that belongs to "
            "this user and can be written to"
        )
    count = compiled = 0
    for kernel in library.load_all():
        count += 1
        compiled += not kernel.from_cache
        what = "was there" if kernel.from_cache else f"compiled in {kernel.took_s:.1f} s"
        echo(f"{kernel.name} {kernel.dtype.name}: {what}")
    echo(f"{counted(count, 'kernel')}, {compiled} compiled, in {folder.path}")
