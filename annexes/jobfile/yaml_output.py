"""Plain data as YAML that every parser reads alike. Pure."""

from collections.abc import Iterable
from typing import Any

import yaml

# Booleans of YAML 1.1 that PyYAML writes plain and other parsers may read as such.
_QUOTED = frozenset({"y", "Y", "n", "N"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Return True: anchors save lines and cost readers."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if text in _QUOTED else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(data: Any) -> str:
    """Write a document, keys in the order given."""
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=96,
    )
    return text


def dump_documents(documents: Iterable[Any]) -> str:
    """Write several documents, each behind a ``---``."""
    return "".join(f"---\n{dump_yaml(document)}" for document in documents)
