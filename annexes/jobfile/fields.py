"""Building blocks of a job file's parts: their base class, their error and kinds of text."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

Text = Annotated[str, StringConstraints(max_length=32_768)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ObjectName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$")]


class MisfitError(ValueError):
    """The values of two fields do not fit each other.

    Attributes:
        path: Path of the field to look at, from the model that is validated.
    """

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Part(BaseModel):
    """A part of a job file: frozen, and a field that it does not have is an error."""

    # Strict: `count: true` is no number. Validate JSON, or give models, not dictionaries.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
