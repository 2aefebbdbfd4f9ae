"""A growing table on parameter servers, as a strategy knows it."""

from dataclasses import dataclass

from ...core.arrays.dtypes import Array
from ...core.rules.definitions import VariableDefinition


@dataclass(eq=False)
class PsTable:
    """A growing table.

    Attributes:
        definition: Definition of the table, under the name that it has in the job.
        first_value: First value of rows; None: rows begin with what their keys say.
    """

    definition: VariableDefinition
    first_value: Array | None = None

    @property
    def name(self) -> str:
        """Unique in the job."""
        return self.definition.name
