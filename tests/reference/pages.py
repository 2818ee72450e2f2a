"""Write what the code says of itself: `python -m tests.reference.pages`.

The keys of docs/reference/fleet-yaml.md, fleet.schema.json and the CRD in k8s/chart/files come from
fleet/config/spec*.py, the alert rules and the dashboard beside it from fleet/report, the help in
cli.md from the commands, the columns in json.md from fleet/commands/groups/group_status.py, the
table in acls.md from fleet/config/acls.py; in docs/contributing, the tables of benchmark-log.md and
faults.md from docs/data. tests/reference/test_pages.py compares all with the code.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from benchmarks.rebalance_table import markdown, read_cells
from fleet.cli import COMMANDS, SECTIONS, cli
from fleet.commands.groups.group_status import GROUPS, PARTITIONS, SLOTS
from fleet.commands.simulate import SimulateCommand
from fleet.commands.simulate_scaling import scaling
from fleet.config import acls
from fleet.config.load import _bare, _bounds, _literals, _models, _tag_of
from fleet.config.spec import FleetSpec, GroupSpec, seconds
from fleet.report.alert_rules import rules_yaml
from fleet.report.dashboard import dashboard_json
from tests.faults import matrix_table
from tests.reference.crd import definition
from tests.support.needs import repository

AGAIN = "python -m tests.reference.pages"
REFERENCE = r"\$\{"


@cache
def _documented(module: str) -> dict[tuple[str, str], str]:
    """(class, field) → the string under it."""
    found = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        body = node.body if isinstance(node, ast.ClassDef) else []
        for field, told in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(told, ast.Expr)
                and isinstance(told.value, ast.Constant)
            ):
                found[node.name, field.target.id] = inspect.cleandoc(str(told.value.value))
    return found


def told(model: type[BaseModel], name: str) -> str:
    """What is written under a field, in the model or what it inherits from; one line."""
    for each in model.__mro__:
        text = _documented(each.__module__).get((each.__name__, name), "")
        if text:
            return " ".join(text.split())
    return ""


def keys(model: type[BaseModel], path: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Key, type, default, limits and what it says; inner mappings follow their key."""
    for name, info in model.model_fields.items():
        where = f"{path}{name}"
        inner = list(_models(info.annotation))
        many = [m for a in getattr(_bare(info.annotation), "__args__", ()) for m in _models(a)]
        entries = [] if inner else many
        text = told(model, name)
        default = "" if info.is_required() else _default(info, inner)
        yield where, _kind(info, inner, entries), default, _limits(info), text
        if len(inner) > 1 and not where.startswith("fleets[]"):
            continue  # its text names the key whose variants are listed
        for each in inner or entries:
            tag = _tag_of(each) if len(inner) > 1 else None
            ending = "[]." if entries else f"({tag})." if tag else "."
            yield from keys(each, where + ending)


def _kind(info: Any, inner: list, entries: list) -> str:
    if inner:
        return "mapping"
    if entries:
        return "list of mappings"
    if found := _literals(info.annotation):
        return " or ".join(f"`{each}`" for each in found)
    text = str(info.annotation) + str(info.metadata)
    if "seconds" in text:
        return "duration"
    bare = _bare(info.annotation)
    if get_origin(bare) is tuple:
        return "list"
    if get_origin(bare) in {dict, Mapping}:
        return "mapping"
    return {bool: "true or false", int: "whole number", float: "number"}.get(bare, "text")


def _default(info: Any, inner: list) -> str:
    value = info.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "none"
    if isinstance(value, BaseModel):
        tag = _tag_of(type(value)) if len(inner) > 1 else None
        return f"`{tag}`" if tag else "see below"
    if isinstance(value, float) and any(getattr(e, "func", None) is seconds for e in info.metadata):
        return f"`{_duration(value)}`"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{json.dumps(value) if not isinstance(value, str) else value or chr(34) * 2}`"


def _duration(value: float) -> str:
    if 0 < value < 1:
        return f"{value * 1000:g}ms"
    for unit, many in (("d", 86400), ("h", 3600), ("m", 60)):
        if value and value % many == 0:
            return f"{value / many:g}{unit}"
    return f"{value:g}s"


def _limits(info: Any) -> str:
    patterns = [getattr(each, "pattern", None) for each in info.metadata]
    return _bounds(info) or next((f"`{p}`".replace("|", "\\|") for p in patterns if p), "")


def yaml_page() -> str:
    """docs/reference/fleet-yaml.md."""
    rows = [
        "| " + " | ".join((f"`{key}`", kind, default, limits, text.replace("|", "\\|"))) + " |"
        for key, kind, default, limits, text in keys(FleetSpec, "")
    ]
    table = ["| key | type | default | limits | what |", "|---|---|---|---|---|", *rows]
    example = (repository() / "fleet.example.yaml").read_text(encoding="utf-8")
    ending = f"\n\n## An example\n\n`fleet.example.yaml`:\n\n```yaml\n{example}```\n"
    return _filled("fleet-yaml", "\n".join(table) + ending)


def schema() -> str:
    """JSON schema of the file as it is written, before references are looked up."""
    made = FleetSpec.model_json_schema()
    models = {m.__name__: m for m in [FleetSpec, *_below(FleetSpec)]}
    for name, part in [("FleetSpec", made), *made["$defs"].items()]:
        model = models[name]
        part.pop("description", None)
        needed = {"group", _tagged(model)}
        part["required"] = [key for key in part.get("required", []) if key in needed]
        for key, each in part.get("properties", {}).items():
            each.pop("title", None)
            if text := told(model, key):
                each["description"] = text
    group = made["$defs"]["GroupSpec"]["properties"]
    made["properties"]["defaults"] = {
        "description": "Any key of a fleet but group, for all of them.",
        "type": "object",
        "propertyNames": {"enum": sorted(key for key in group if key != "group")},
    }
    made |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "fleet.yaml"}
    return json.dumps(_as_written(made), indent=1, sort_keys=True) + "\n"


def crd() -> str:
    """The CustomResourceDefinition of ConsumerFleet, with one entry of the file as its spec."""
    models = {m.__name__: m for m in [GroupSpec, *_below(GroupSpec)]}
    return definition(models, told, AGAIN)


def alert_rules() -> str:
    """The rules of a cluster; the chart fills in its name and where its runbooks are."""
    alerts = {"runbooks": "https://RUNBOOKS"}
    spec = FleetSpec.model_validate({"cluster": {"name": "CLUSTER"}, "alerts": alerts})
    return rules_yaml(spec)


def _tagged(model: type[BaseModel]) -> str | None:
    tags = (key for key in ("protocol", "policy", "kind") if key in model.model_fields)
    return next(tags, None) if _tag_of(model) else None


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for info in model.model_fields.values():
        args = getattr(_bare(info.annotation), "__args__", ())
        for each in [*_models(info.annotation), *(m for a in args for m in _models(a))]:
            yield each
            yield from _below(each)


def _as_written(part: Any) -> Any:
    """Numbers, choices and texts with a pattern may be references; durations have units."""
    if isinstance(part, list):
        return [_as_written(each) for each in part]
    if not isinstance(part, dict):
        return part
    plain = {key: _as_written(each) for key, each in part.items() if key != "default"}
    if plain.get("type") not in {"number", "integer", "boolean", "string"} and "enum" not in plain:
        return plain
    about = {key: plain.pop(key) for key in ("description",) if key in plain}
    if plain in ({"type": "string"}, {"const": plain.get("const"), "type": "string"}):
        return about | plain
    others = [{"type": "string", "pattern": REFERENCE}]
    if plain.get("type") == "number":
        others.append({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"})
    return about | {"anyOf": [plain, *others]}


def cli_page() -> str:
    """docs/reference/cli.md."""
    lines: list[str] = []
    for section in SECTIONS:
        lines += [f"## {section}", ""]
        for name, lazy in COMMANDS.items():
            if lazy.section == section:
                command = cli.get_command(click.Context(cli), name)
                assert command is not None
                lines += [*_command(command, f"fleet {name}"), ""]
    return _filled("cli", "\n".join(lines).rstrip() + "\n")


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path, help_option_names=["-h", "--help"],
                            max_content_width=98, terminal_width=98)  # fmt: skip
    yield f"### {path}"
    yield ""
    yield "```text"
    yield from command.get_help(context).splitlines()
    yield "```"
    if isinstance(command, SimulateCommand):
        yield ""
        yield from _command(scaling, f"{path} scaling")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield ""
                yield from _command(inner, f"{path} {name}")


def rebalance_page() -> str:
    """docs/contributing/benchmark-log.md."""
    return _with_tables("benchmark-log", "rebalance-table", lambda data: markdown(read_cells(data)))


def matrix_page() -> str:
    """docs/contributing/faults.md."""
    return _with_tables("faults", "fault-matrix", matrix_table.page)


def _with_tables(name: str, data: str, tables: Callable[[Path], str]) -> str:
    """What people wrote, then the tables of the page's data."""
    docs = repository() / "docs"
    written = (docs / "contributing" / f"{name}.md").read_text(encoding="utf-8")
    prose, mark, _ = written.partition(f"<!-- by {AGAIN} -->\n")
    return prose + mark + tables(docs / "data" / f"{data}.csv")


def json_page() -> str:
    """docs/reference/json.md: which column of `fleet status` shows which key."""
    rows = [
        f"| {column.header or column.label} | `{key}{column.key}` | {column.about} |\n"
        for key, columns in (("", GROUPS), ("slots[].", SLOTS), ("partitions[].", PARTITIONS))
        for column in columns
        if column.cell is not None
    ]
    return _filled("json", "| column | key | meaning |\n|---|---|---|\n" + "".join(rows))


def acls_page() -> str:
    """docs/reference/acls.md."""
    rows = ["| part | resource | operation | for | without it |", "|---|---|---|---|---|"]
    shown: set[acls.Acl] = set()
    for part, needed in acls.TABLE.items():
        for acl in needed:
            if acl not in shown:
                name = acl.name if acl.name.startswith("{") else f"`{acl.name}`"
                rows.append(
                    f"| {part} | {acl.resource} {name} | {acl.operation} | {acl.why} "
                    f"| {acl.without} |"
                )
        shown.update(needed)
    return _filled("acls", "\n".join(rows) + "\n")


def _filled(name: str, table: str) -> str:
    """A page of docs/reference with that table between its marks."""
    written = (repository() / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    head, begin, rest = written.partition(f"<!-- by {AGAIN} -->\n")
    _, end, tail = rest.partition("<!-- end -->\n")
    return head + begin + table + end + tail


PAGES = {
    "docs/reference/acls.md": acls_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/fleet-yaml.md": yaml_page,
    "docs/reference/json.md": json_page,
    "docs/contributing/benchmark-log.md": rebalance_page,
    "docs/contributing/faults.md": matrix_page,
    "fleet/config/fleet.schema.json": schema,
    "k8s/chart/files/alert-rules.yaml": alert_rules,
    "k8s/chart/files/consumerfleets.yaml": crd,
    "k8s/chart/files/dashboard.json": dashboard_json,
}


if __name__ == "__main__":
    for name, made in PAGES.items():
        Path(repository(), name).write_text(made(), encoding="utf-8")
