"""What job authors decode values with that a schema registry's serializers wrote
(docs/how-to/schema-registry.md).

`decoded` is a function of the batch's rows; `Registry` says where the schemas are.
"""

from fleet.formats.decoding import decoded
from fleet.formats.schema_registry import SchemaRegistry

__all__ = ["SchemaRegistry", "decoded"]
