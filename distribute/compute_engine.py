"""GCEClusterResolver: the instances of a Compute Engine instance group as a cluster.

The one module that knows ``googleapiclient`` and ``google.auth``, which are an extra and are loaded
when a client is made. TensorFlow's resolver names a parameter ``instanceGroups``, which that
library refuses; it works with a ``service`` of its tests alone.
"""

import os
from copy import copy
from typing import Any

from ..cluster.resolvers.resolver import ClusterResolver, natural
from ..cluster.spec import ClusterSpec
from ..core.errors import ConfigurationError

_MOST_PAGES = 100


class GCEClusterResolver(ClusterResolver):
    """A resolver like ``tf.distribute.cluster_resolver.GCEClusterResolver``: running instances of a
    group.

    Instances are ordered by their names, numbers in them as numbers; TensorFlow orders addresses as
    strings. Without ``task_id`` it is the index of the instance that has this host's name.

    ::

        GCEClusterResolver("my-project", "europe-west4-a", "trainers", port=2222)

    Args:
        project: Project of the group.
        zone: Zone of the group.
        instance_group: Name of the group.
        port: Port of every task.
        task_type: Type of the group's tasks; it cannot be set later.
        task_id: Index of this instance's task; None: looked up by host name (TensorFlow: 0, on
            every instance).
        rpc_layer: Protocol in front of addresses.
        credentials: ``"default"``: those of the machine or of ``gcloud``.
        service: A client that ``googleapiclient.discovery`` made; ``credentials`` is then not used.
        hostname: Host name of this instance; None: that of this machine.

    Raises:
        ImportError: The client library is not installed.
        ConfigurationError: There are no default credentials.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = None,
        rpc_layer: str | None = "grpc",
        credentials: Any = "default",
        service: Any = None,
        *,
        hostname: str | None = None,
    ) -> None:
        self._project = project
        self._zone = zone
        self._group = instance_group
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._service = make_service(credentials) if service is None else service
        self._hostname = os.uname().nodename if hostname is None else hostname
        self._fixed: dict[str, str] | None = None  # of a snapshot

    def cluster_spec(self) -> ClusterSpec:
        """List the instances that run now.

        Raises:
            ConfigurationError: There are none, or they may not be listed.
        """
        addresses = [f"{address}:{self._port}" for address in self._instances().values()]
        return ClusterSpec({self._task_type or "": addresses})

    def snapshot(self) -> "GCEClusterResolver":
        """Make a resolver of the instances that run now."""
        fixed = copy(self)
        fixed._fixed = self._instances()
        return fixed

    def _instances(self) -> dict[str, str]:
        """Name → address of the running instances, in order."""
        if self._fixed is not None:
            return self._fixed
        try:
            addresses = self._list()
        except Exception as error:
            raise self._explained(error) from error
        if not addresses:
            raise ConfigurationError(
                f"no instance of {self._where} runs; start them first: `gcloud compute "
                f"instance-groups list-instances {self._group} --zone {self._zone}` shows them",
                group=self._group,
            )
        return {name: addresses[name] for name in sorted(addresses, key=natural)}

    def _list(self) -> dict[str, str]:
        groups, instances = self._service.instanceGroups(), self._service.instances()
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._group,
            body={"instanceState": "RUNNING"},
            orderBy="name",
        )
        addresses: dict[str, str] = {}
        for _ in range(_MOST_PAGES):
            if request is None:
                break
            page = request.execute()
            for item in page.get("items", ()):
                name = item["instance"].rpartition("/")[2]
                instance_request = instances.get(
                    project=self._project, zone=self._zone, instance=name
                )
                addresses[name] = instance_request.execute()["networkInterfaces"][0]["networkIP"]
            request = groups.listInstances_next(previous_request=request, previous_response=page)
        return addresses

    @property
    def _where(self) -> str:
        return f"instance group {self._group!r} (project {self._project!r}, zone {self._zone!r})"

    def _explained(self, error: Exception) -> Exception:
        """Convert the client's error to ours; one that is no answer of the API stays as it is."""
        status = getattr(getattr(error, "resp", None), "status", None)
        if status is None:
            return error
        remedy = {
            403: "the account needs compute.instanceGroups.list and compute.instances.get "
            "(roles/compute.viewer)",
            404: "check project, zone and name; a regional group has no zone and is not supported",
        }.get(int(status), getattr(error, "reason", "") or "try again")
        return ConfigurationError(
            f"Compute Engine answers {status} for {self._where}: {remedy}", status=status
        )

    def _found(self, name: str) -> Any:
        if name != "task_id":
            return None
        names = list(self._instances())
        own = self._hostname.split(".", 1)[0]
        return names.index(own) if own in names else None

    @property
    def task_type(self) -> str | None:
        """Task type that the constructor was given."""
        return self._task_type

    @task_type.setter
    def task_type(self, value: str | None) -> None:  # noqa: ARG002
        raise RuntimeError("task_type of a GCEClusterResolver is given to its constructor")

    @property
    def source(self) -> str:
        """``"Compute Engine"``."""
        return "Compute Engine"

    @property
    def sources(self) -> dict[str, str]:
        """The group, and the host name."""
        task = "the program" if self._task_id is not None else f"host name {self._hostname}"
        return {"cluster": f"instance group {self._group}", "task": task}

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True


def make_service(credentials: Any) -> Any:
    """Make a client of the Compute Engine API.

    Args:
        credentials: ``"default"``: those of the machine or of ``gcloud``.

    Raises:
        ImportError: The library is not installed; says how.
        ConfigurationError: There are no default credentials.
    """
    try:
        import google.auth
        from googleapiclient import discovery
    except ImportError as error:
        raise ImportError(
            "GCEClusterResolver needs the client of Google's APIs: pip install 'ropewalk[gce]'"
        ) from error
    if credentials == "default":
        try:
            credentials, _ = google.auth.default(
                scopes=["https://www.googleapis.com/auth/compute.readonly"]
            )
        except google.auth.exceptions.DefaultCredentialsError as error:
            raise ConfigurationError(
                f"no credentials for Compute Engine: {error}; on an instance give it a service "
                "account, elsewhere `gcloud auth application-default login`"
            ) from error
    # The description of the API comes with the library: nothing is fetched.
    return discovery.build("compute", "v1", credentials=credentials, static_discovery=True)
