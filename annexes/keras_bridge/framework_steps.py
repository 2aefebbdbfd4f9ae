"""The steps of the framework that Keras runs on."""

from importlib import import_module
from typing import Any

from .frameworks import framework_of_keras


def steps_module() -> Any:
    """Find the module whose ``STEPS`` train on the framework that Keras runs on."""
    return import_module(f".{framework_of_keras()}_steps", __package__)
