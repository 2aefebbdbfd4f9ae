"""The services of the compose file, as far as they say what runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .processes import ROOT

FILE = ROOT / "docker-compose.yml"


@dataclass(frozen=True, slots=True)
class Service:
    """What one container runs.

    Attributes:
        command: What is executed.
        environment: Its variables.
        volumes: Path in the container → what is mounted there.
        healthcheck: The command that asks for its health; empty: none.
        said: All that the file says of it.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    volumes: dict[str, str]
    healthcheck: tuple[str, ...]
    said: dict[str, Any] = field(repr=False)

    def in_place(self, folders: Mapping[str, Path]) -> "Service":
        """The same with the paths of this machine where it names mounted ones.

        Args:
            folders: Volume, or the beginning of a path beside the compose file → its folder here.
        """
        mounted: dict[str, str] = {}
        for path, source in self.volumes.items():
            known = next((name for name in folders if source.startswith(name)), None)
            if known is not None:
                mounted[path] = str(folders[known]) + source.removeprefix(known)

        def here(text: str) -> str:
            for path, folder in mounted.items():
                if text.startswith(path):
                    return folder + text.removeprefix(path)
            return text

        command = tuple(here(word) for word in self.command)
        environment = {name: here(value) for name, value in self.environment.items()}
        return Service(command, environment, self.volumes, self.healthcheck, self.said)


def services() -> dict[str, Service]:
    """Every service by name."""
    found: dict[str, Service] = {}
    for name, said in yaml.safe_load(FILE.read_text())["services"].items():
        volumes = [volume.split(":") for volume in said.get("volumes", [])]
        test = said.get("healthcheck", {}).get("test", [])
        found[name] = Service(
            tuple(said["command"]),
            dict(said.get("environment", {})),
            {path: source for source, path, *_ in volumes},
            tuple(test[1:]),
            said,
        )
    return found
