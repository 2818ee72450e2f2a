"""Names that others than this release's own modules use: they stay where they are.

A local worker or supervisor of the release before goes on when the code below it is replaced.
What it starts as a program, or imports only when it is needed, it finds in the new code, under
the old name. Users name others in fleet.yaml, manifests and programs (docs/).
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

OLDER_WORKERS = {
    "fleet.worker.__main__": (),  # the argument list of a wanted worker is stored
    "fleet.worker.asking": (),  # python -m: questions to the coordinator
    "fleet.act.kafka": ("GroupAdmin", "LeavingMember"),
    "fleet.act.spark_server": ("connect_url", "token"),
    "fleet.security": ("kafka_python_config",),
    "fleet.kafka_source.columns": ("SCHEMA",),
    "fleet.kafka_source.source": ("frame_of_ranges",),
    "fleet.errors": ("FleetError", "Unreachable"),
    "fleet.model": ("TopicPartition",),
}
USERS = {
    "assets.definitions": ("defs",),
    "fleet.act.spark_server": ("main",),
    "fleet.demo.orders": ("process",),
    "fleet.formats": ("SchemaRegistry", "decoded"),
    "fleet.history.source": ("register",),
    "fleet.history.tables": ("Tables",),
    "fleet.sinks": (
        *("compact_parquet", "parquet_files", "read_parquet", "write_delta", "write_iceberg"),
        "write_parquet",
    ),
    "fleet.worker.context": ("BatchContext",),
    "fleet.worker.sinks": ("write_parquet",),
}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        *(pytest.param(m, n, id=f"older-{m}") for m, n in OLDER_WORKERS.items()),
        *(pytest.param(m, n, id=f"users-{m}") for m, n in USERS.items()),
    ],
)
def test_the_name_is_there(module: str, names: tuple[str, ...]) -> None:
    """Found without importing it: some of these load Spark, or fleet.yaml."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = set()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    assert set(names) <= found
