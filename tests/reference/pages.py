"""Write what the code says of itself: `python -m tests.reference.pages`.

docs/fleet-yaml.md and fleet/config/fleet.schema.json come from fleet/config/spec*.py, docs/cli.md
from the commands, the columns of docs/json.md from fleet/commands/groups/group_status.py, the
tables of docs/rebalance-table.md and docs/fault-matrix.md from their data;
tests/reference/test_pages.py compares them with the code.
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
from fleet.config.load import _bare, _bounds, _literals, _models, _tag_of
from fleet.config.spec import FleetSpec, seconds
from tests.faults import matrix_table
from tests.support.needs import repository

AGAIN = "python -m tests.reference.pages"
REFERENCE = r"\$\{"
HEAD = """\
# Every key of fleet.yaml

Written from `fleet/config/spec*.py` by `{again}`. Every key is there since 0.1.0. A *duration*
is a number of seconds, or a number with its unit: `200ms`, `30s`, `5m`, `1h`, `2d`. Both ends of
limits are allowed. A key without a default has to be written. `${{NAME}}` and
`${{NAME:-default}}` are looked up in the environment, `$${{` is the characters themselves.
`defaults:` at the top takes any key of a fleet but `group`, for all of them; a fleet's own wins.

An editor checks a file while you write (yaml-language-server) where the schema is beside it and
the file says so in its first line. `fleet schema` prints the schema:

```yaml
# yaml-language-server: $schema=fleet.schema.json
```

## When a change takes effect

- `worker` (but `python_path`), `rollout.drain_timeout`, `runtime` (but `context` and, of `kind:
  local`, `lease`), the code: another revision: the next plan rolls to it. `topics`, `assignor`,
  `protocol`, `session_timeout` and `membership` take steps of their own, with their expected cost.
- `mode`, `replicas`, `scaling`, `create`, `storm`, the rest of `rollout`: with the next plan or
  look.
- `cluster.bootstrap_servers`, `cluster.security`, `worker.python_path`, a local `lease`: for
  workers that start from the next `fleet apply` or tick on; `fleet roll` brings it to those that
  run.
- `exporter`, `owner`: with the exporter's next look.
- `history`: with the next `fleet history run`; a `fleet history tail` that runs goes on as it
  began. Another `path` begins at the start of the log.
- `ui`: when `fleet ui` starts next.
- `alerts`, `max_lag`: in rules that are written anew (`fleet alerts`); Dagster's checks at once.
- `dagster.schedules`, groups that are new: when Dagster's code location is reloaded.
- a group taken out, or renamed: never by itself: its workers run on, as `fleet doctor` says.
  Scale it to 0 first.
- `cluster.name`, `runtime.kind`, `runtime.namespace`: another place: workers run on in the one
  before until `fleet down` with the fleet.yaml of before.

A change that is carried out goes on as it was planned, whatever is written meanwhile; so does one
that another manager picks up. What fleet.yaml says by then is planned after it.
"""


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
    """docs/fleet-yaml.md."""
    rows = [
        "| " + " | ".join((f"`{key}`", kind, default, limits, text.replace("|", "\\|"))) + " |"
        for key, kind, default, limits, text in keys(FleetSpec, "")
    ]
    table = ["| key | type | default | limits | what |", "|---|---|---|---|---|", *rows]
    example = (repository() / "fleet.example.yaml").read_text(encoding="utf-8")
    ending = f"## An example\n\n`fleet.example.yaml`:\n\n```yaml\n{example}```\n"
    return HEAD.format(again=AGAIN) + "\n" + "\n".join(table) + "\n\n" + ending


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
    """docs/cli.md."""
    lines = ["# Every command", "", f"Written from the commands' own help by `{AGAIN}`.", ""]
    for section in SECTIONS:
        lines += [f"## {section}", ""]
        for name, lazy in COMMANDS.items():
            if lazy.section == section:
                command = cli.get_command(click.Context(cli), name)
                assert command is not None
                lines += [*_command(command, f"fleet {name}"), ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path, help_option_names=["-h", "--help"],
                            max_content_width=98, terminal_width=98)  # fmt: skip
    yield f"### {path}"
    yield ""
    yield "```text"
    yield from command.get_help(context).splitlines()
    yield "```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield ""
                yield from _command(inner, f"{path} {name}")


def rebalance_page() -> str:
    """docs/rebalance-table.md."""
    return _with_tables("rebalance-table", lambda data: markdown(read_cells(data)))


def matrix_page() -> str:
    """docs/fault-matrix.md."""
    return _with_tables("fault-matrix", matrix_table.page)


def _with_tables(name: str, tables: Callable[[Path], str]) -> str:
    """What people wrote, then the tables of the page's data."""
    docs = repository() / "docs"
    written = (docs / f"{name}.md").read_text(encoding="utf-8")
    prose, mark, _ = written.partition(f"<!-- by {AGAIN} -->\n")
    return prose + mark + tables(docs / "data" / f"{name}.csv")


def json_page() -> str:
    """docs/json.md: which column of `fleet status` shows which key."""
    written = (repository() / "docs" / "json.md").read_text(encoding="utf-8")
    head, begin, rest = written.partition(f"<!-- by {AGAIN} -->\n")
    _, end, tail = rest.partition("<!-- end -->\n")
    rows = [
        f"| {column.header or column.label} | `{key}{column.key}` | {column.about} |\n"
        for key, columns in (("", GROUPS), ("slots[].", SLOTS), ("partitions[].", PARTITIONS))
        for column in columns
        if column.cell is not None
    ]
    return head + begin + "| column | key | says |\n|---|---|---|\n" + "".join(rows) + end + tail


PAGES = {
    "docs/json.md": json_page,
    "docs/rebalance-table.md": rebalance_page,
    "docs/fault-matrix.md": matrix_page,
    "docs/fleet-yaml.md": yaml_page,
    "docs/cli.md": cli_page,
    "fleet/config/fleet.schema.json": schema,
}


if __name__ == "__main__":
    for name, made in PAGES.items():
        Path(repository(), name).write_text(made(), encoding="utf-8")
