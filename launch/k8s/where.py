"""Cluster and namespace that a command talks to, and how a hint names them. Pure."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """The target of a command.

    Attributes:
        namespace: Namespace of the job.
        server: Address of the API server, as the kubeconfig has it.
        context: Value of ``--context``; empty: the current context.
        job_file: Value of ``--job``; empty: the usual file.
    """

    namespace: str
    server: str = ""
    context: str = ""
    job_file: str = ""

    def command(self, verb: str, name: str = "", *flags: str) -> str:
        """Write a command that finds the same job again: ``ropewalk k8s status --name digits -n
        train``.

        Args:
            verb: The command below ``ropewalk k8s``.
            name: Name of the job; empty: the command reads the job file.
            flags: More words, e.g. ``"--watch"``.
        """
        words = ["ropewalk", "k8s", verb, *flags]
        file = ["--job", self.job_file] if self.job_file else []
        words += ["--name", name] if name else file
        return shlex.join([*words, *self.flags])

    @property
    def flags(self) -> list[str]:
        """The words that say namespace and context, for ``kubectl`` too."""
        return ["-n", self.namespace, *(["--context", self.context] if self.context else [])]
