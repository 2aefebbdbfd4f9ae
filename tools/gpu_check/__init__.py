"""``make gpu``: looks whether what Ropewalk promises on GPUs holds on those of this machine.

A row is a promise and a function that looks whether it holds. Rows are in ``sections``, a module
for each section; ``rows`` says what a row is and who can look at it, ``running`` gives each a
process and a limit of its own, and ``showing`` makes one table of what was found.

To add one, write a function in the module of its section::

    @row("docs/gpu.md", wanted="as on the CPU", needs=["cupy"], gpus=2)
    def sums() -> str:
        \"\"\"A sum over all GPUs is what the host computes.\"\"\"
        ...                  # raise anything: FAIL; raise Skip("why"): SKIP
        return "10 dtypes"   # what was found

``--stand-in N`` runs rows on a machine without a GPU: on the strict CuPy of
``tests/helpers/strict_cupy``, with N GPUs, and on the CPU devices of JAX and PyTorch. That tries
the rows themselves, and says nothing about a GPU.
"""
