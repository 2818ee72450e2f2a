"""Reads fleet.yaml into a FleetSpec, or reports every error with its line.

Problem: people write the file by hand, a typo must start nothing, and fleets share settings.
Choice: the file becomes a tree that knows its lines. `defaults:` are merged under each fleet,
`${NAME}` is expanded, and pydantic validates. Its findings go back to the lines that caused
them, up to 20 at once. Cost: three passes over the file in memory.

Merging `defaults:`: mappings merge key by key, a fleet's own key wins, and lists are replaced. If
the fleet names another tag, a tagged mapping is replaced whole (worker by protocol, scaling by
policy, runtime by kind). A fleet without `worker:` is external and only observed, unless the
defaults' worker has an entrypoint.
"""

import difflib
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fleet.config.client_properties import ClientProperties, client_properties
from fleet.config.references import (
    LOGIN,
    expand,
    is_expanded_later,
    malformed_references,
    only_reference,
)
from fleet.config.spec import FleetSpec, GroupSpec, Security, seconds
from fleet.errors import ConfigError

# YAML as a tree that keeps the line of each value, also of those that `defaults:` adds. Anchors are
# expanded within a bound; merge keys (`<<`) are refused.


MAX_NODES = 200_000
"""Most values in one file with aliases expanded; stops an alias bomb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Describes one line of a ConfigError: the place, the key and the error."""

    line: int
    path: str
    text: str

    def render(self, file: str) -> str:
        """Returns a line such as `fleet.yaml:12: fleets[0].group: …`."""
        where = f"{self.path}: " if self.path else ""
        return f"{file}:{self.line}: {where}{self.text}"


@dataclass(slots=True, kw_only=True)
class YamlNode:
    """Holds a mapping, a list or a scalar with its line (from 1) and its path."""

    value: Any
    line: int
    path: str
    shown: str | None = None
    """Text for errors instead of the value: `${NAME}` as written, not the variable's value."""

    def plain(self) -> Any:
        """Returns the plain value."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def problem(self, text: str) -> Problem:
        """Returns a problem at this node."""
        return Problem(line=self.line, path=self.path, text=text)

    def at(self, steps: tuple[str | int, ...]) -> tuple["YamlNode", tuple[str | int, ...]]:
        """Returns the deepest existing node on that path, and the remaining steps."""
        node = self
        for index, step in enumerate(steps):
            value = node.value
            inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
            if not inside and not (isinstance(value, dict) and step in value):
                return node, steps[index:]
            node = value[step]
        return node, ()


def join(path: str, step: str | int) -> str:
    """Joins a path and a step: `fleets[0]` and `worker` give `fleets[0].worker`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


@dataclass(slots=True)
class YamlReader:
    """Converts composed YAML to nodes, expands `${NAME}` and collects problems."""

    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    _count: int = 0
    _open: set[int] = field(default_factory=set)
    _constructor: yaml.constructor.SafeConstructor = field(
        default_factory=yaml.constructor.SafeConstructor
    )

    def node(self, source: yaml.Node, path: str = "", line: int | None = None) -> YamlNode:
        """Converts a node and all below it; `line` is its key's, if it has a key."""
        at = source.start_mark.line + 1 if line is None else line
        self._count += 1
        if self._count > MAX_NODES or id(source) in self._open:
            text = (
                "an alias contains itself"
                if id(source) in self._open
                else f"has more than {MAX_NODES:,} values; split the file by cluster"
            )
            if self._count <= MAX_NODES + 1:
                self.problems.append(Problem(line=at, path=path, text=text))
            return YamlNode(value=None, line=at, path=path)
        self._open.add(id(source))
        try:
            if isinstance(source, yaml.MappingNode):
                return self._mapping(source, path, at)
            if isinstance(source, yaml.SequenceNode):
                items = [
                    self.node(item, join(path, index)) for index, item in enumerate(source.value)
                ]
                return YamlNode(value=items, line=at, path=path)
            return self._scalar(source, path, at)
        finally:
            self._open.discard(id(source))

    def _wrong(self, line: int, path: str, text: str) -> None:
        self.problems.append(Problem(line=line, path=path, text=text))

    def _mapping(self, source: yaml.MappingNode, path: str, line: int) -> YamlNode:
        found: dict[str, YamlNode] = {}
        for key_node, value_node in source.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(at, path, "a key must be text")
                continue
            # The text as written: YAML 1.1 would read the key `on` as true.
            key = str(key_node.value)
            if key == "<<":
                text = "merge keys (<<) are not supported; write shared settings under defaults:"
                self._wrong(at, path, text)
                continue
            if key in found:
                text = f"is a duplicate of the key in line {found[key].line}; remove one"
                self._wrong(at, join(path, key), text)
                continue
            found[key] = self.node(value_node, join(path, key), at)
        return YamlNode(value=found, line=line, path=path)

    def _scalar(self, source: yaml.Node, path: str, line: int) -> YamlNode:
        try:
            value = self._constructor.construct_object(source)
        except (yaml.YAMLError, ValueError) as error:
            text = f"{source.value!r} cannot be read ({_problem_of(error)}); write it in quotes"
            self._wrong(line, path, text)
            return YamlNode(value=None, line=line, path=path)
        # YAML 1.1 does not read on, yes and 2026-11-21 as text; YAML 1.2 and people do.
        word = isinstance(value, bool) and source.value.lower() not in {"true", "false"}
        if word or not (value is None or isinstance(value, bool | int | float | str)):
            value = source.value
        if not isinstance(value, str):
            return YamlNode(value=value, line=line, path=path)
        return self._expanded(value, path, line)

    def _expanded(self, text: str, path: str, line: int) -> YamlNode:
        if is_expanded_later(path, text):
            value, missing = text, malformed_references(text)
        else:
            value, missing = expand(text, self.environ)
        self.problems.extend(Problem(line=line, path=path, text=each) for each in missing)
        return YamlNode(value=value, line=line, path=path, shown=text if value != text else None)


def _problem_of(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error)


def read_tree(text: str, environ: Mapping[str, str]) -> tuple[YamlNode | None, list[Problem]]:
    """Returns the file's tree (None if it is empty or not YAML) and its problems."""
    try:
        return _read_tree(text, environ)
    except RecursionError:
        text = "is nested too deeply; check for a bracket that is not closed"
        return None, [Problem(line=1, path="", text=text)]


def _read_tree(text: str, environ: Mapping[str, str]) -> tuple[YamlNode | None, list[Problem]]:
    try:
        source = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        hint = ""
        written = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
        if "${" in written:
            hint = '; inside {…} put a reference in quotes: "${NAME}"'
        elif "\t" in written:
            hint = "; indent with spaces, not tabs"
        return None, [Problem(line=line, path="", text=f"is not YAML: {_problem_of(error)}{hint}")]
    except yaml.YAMLError as error:
        return None, [Problem(line=1, path="", text=f"is not YAML: {_problem_of(error)}")]
    if source is None:
        return None, []
    reader = YamlReader(environ=environ)
    return reader.node(source), reader.problems


# Errors of pydantic in the keys as written. The schema's annotations say what is allowed at an
# error's place, so that a new key or bound needs no second list.


_TAGS = {
    "worker": ("protocol", "classic"),
    "scaling": ("policy", "partitions"),
    "runtime": ("kind", "local"),
}
"""For each tagged mapping: its tag, and the default of the tag."""
_SECRET = re.compile(r"password|secret|token|jaas|passphrase", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)\S*@")
"""A login in an address, which messages must not show."""
_HINTS = {
    "entrypoint": "write package.module:function",
    "name": "write letters, digits, '.', '_' and '-', up to 64, the first a letter or digit",
    "spark": "write shared, sc://host:port or local[n]",
}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}


def problems_of(
    error: ValidationError, root: YamlNode, spec: type[BaseModel] = FleetSpec
) -> list[Problem]:
    """Returns every error of one validation against `spec` once, in the file's order."""
    given: list[dict[str, Any]] = [dict(each) for each in error.errors(include_url=False)]
    # Pydantic also calls a list with wrong entries too short: only the entries are reported.
    places = [each["loc"] for each in given]
    given = [
        each
        for each in given
        if each["type"] != "too_short"
        or not any(p[: len(each["loc"])] == each["loc"] and p != each["loc"] for p in places)
    ]
    found = {_problem(each, root, spec) for each in given}
    return sorted(found, key=lambda p: (p.line, p.path, p.text))


def nearest(word: str, allowed: list[str]) -> str:
    """Returns `; nearest: range (allowed: range, cooperative-sticky)`, or only what is allowed."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    listed = ", ".join(allowed)
    return f"; nearest: {close[0]} (allowed: {listed})" if close else f" (allowed: {listed})"


def is_secret_key(key: str) -> bool:
    """Tells whether a key would hold a secret; `…_env` and `…_file` name its place instead."""
    return bool(_SECRET.search(key)) and not key.endswith(("_env", "_file"))


def refuse_secret(key: str) -> str:
    """Returns the message for a secret in the file."""
    return (
        f"is a secret, which fleet.yaml must not hold; write {key}_env with the name of an "
        f"environment variable, or {key}_file with a path"
    )


def _problem(each: dict[str, Any], root: YamlNode, spec: type[BaseModel]) -> Problem:
    place = _Place.of(each["loc"], spec)
    node, rest = root.at(place.steps)
    path = node.path
    for step in rest:
        path = join(path, step)
    if each["type"] == "union_tag_invalid":
        tag, _ = _TAGS.get(str(place.steps[-1]), ("", ""))
        allowed = [a.strip(" '") for a in str(each["ctx"]["expected_tags"]).split(",")]
        node, _ = root.at((*place.steps, tag))
        word = str(each["ctx"]["tag"])
        return Problem(line=node.line, path=join(path, tag), text=_not_allowed(node, word, allowed))
    if each["type"] == "extra_forbidden":
        return Problem(line=node.line, path=path, text=_unknown_key(place))
    text = _text(each, place, node)
    return Problem(line=_line_named(text, node), path=path, text=text)


def _line_named(text: str, node: YamlNode) -> int:
    """Returns the line of the first key that the text names and the file has."""
    for key in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", text):
        found, rest = node.at(tuple(key.split(".")))
        if not rest:
            return found.line
    return node.line


class _Place:
    """Locates an error: its keys as written, and the schema at that place."""

    __slots__ = ("annotation", "field", "model", "steps", "tag", "union")

    def __init__(self, spec: type[BaseModel]) -> None:
        self.steps: tuple[str | int, ...] = ()
        self.model = spec
        self.field: FieldInfo | None = None
        self.annotation: Any = spec
        self.union: Any = None
        self.tag: str | None = None

    @classmethod
    def of(cls, loc: tuple[str | int, ...], spec: type[BaseModel]) -> "_Place":
        """Follows pydantic's location through the annotations and drops its union tags."""
        place = cls(spec)
        current: Any = spec
        for step in loc:
            variants = {v: m for m in _models(current) for v in [_tag_of(m)] if v is not None}
            if isinstance(step, str) and step in variants and not _is_model(current):
                place.union, place.tag = current, step
                current = place.model = variants[step]
                continue
            place.steps = (*place.steps, step)
            if isinstance(step, int):
                current = next((a for a in get_args(_bare(current)) if a is not Ellipsis), Any)
                place.field = None
            else:
                models = list(_models(current))
                model = models[0] if models else None
                info = model.model_fields.get(step) if model is not None else None
                if model is not None:
                    place.model = model
                place.field = info
                current = info.annotation if info is not None else Any
        place.annotation = current
        return place


def _bare(annotation: Any) -> Any:
    """Removes Annotated and `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        inner = [a for a in get_args(annotation) if a is not NoneType]
        if len(inner) == 1:
            return _bare(inner[0])
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    bare = _bare(annotation)
    if _is_model(bare):
        yield bare
    elif get_origin(bare) in {Union, UnionType}:
        for each in get_args(bare):
            yield from _models(each)


def _tag_of(model: type[BaseModel]) -> str | None:
    for key, _ in _TAGS.values():
        info = model.model_fields.get(key)
        if info is not None and get_origin(info.annotation) is Literal:
            return str(get_args(info.annotation)[0])
    return None


def _literals(annotation: Any) -> list[str]:
    bare = _bare(annotation)
    return [str(a) for a in get_args(bare)] if get_origin(bare) is Literal else []


def _bounds(info: FieldInfo | None) -> str:
    """Returns the field's limits, such as `1 to 10000`; empty if it has none."""
    if info is None:
        return ""
    limits: list[Any] = [*info.metadata]
    for each in get_args(info.annotation):  # an optional field keeps its limits in the union
        for given in getattr(each, "__metadata__", ()):
            limits.extend(given.metadata if isinstance(given, FieldInfo) else [given])
    low = next((limit.ge for limit in limits if hasattr(limit, "ge")), None)
    high = next((limit.le for limit in limits if hasattr(limit, "le")), None)
    unit = "s" if any(getattr(limit, "func", None) is seconds for limit in limits) else ""
    if low is None:
        return ""
    least = f"{_number(low)}{unit}"
    return f"{least} or more" if high is None else f"{least} to {_number(high)}{unit}"


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def _shown(node: YamlNode, given: Any) -> str:
    """Returns the value in quotes, or its reference if it came from the environment."""
    if node.shown is not None:
        return f"the value of {node.shown!r}"
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    if isinstance(given, str):
        return repr(_LOGIN.sub("…@", given))
    return "nothing" if given is None else f"{given}"


def _not_allowed(node: YamlNode, word: str, allowed: list[str]) -> str:
    return f"{_shown(node, word)} is not allowed{nearest(word, allowed)}"


def _unknown_key(place: _Place) -> str:
    key = str(place.steps[-1])
    allowed = list(place.model.model_fields)
    if is_secret_key(key):
        return refuse_secret(key)
    if place.union is not None and place.tag is not None:
        for other in _models(place.union):
            if key in other.model_fields and place.tag != _tag_of(other):
                kind = next(t for t, _ in _TAGS.values() if t in other.model_fields)
                return (
                    f"{key!r} does not exist under {kind} {place.tag}, only under "
                    f"{kind} {_tag_of(other)} (allowed: {', '.join(allowed)})"
                )
    return f"unknown key{nearest(key, allowed)}"


def _text(each: dict[str, Any], place: _Place, node: YamlNode) -> str:
    kind, given = str(each["type"]), each.get("input")
    last = str(place.steps[-1]) if place.steps else ""
    shown = _shown(node, given)
    if kind == "missing":
        hint = f"; {_HINTS[last]}" if last in _HINTS else ""
        return f"is missing{hint}"
    if kind == "literal_error" and place.field is not None:
        return _not_allowed(node, str(given), _literals(place.field.annotation))
    if kind == "value_error":
        reason = str(each["ctx"]["error"])
        return f"{shown} {reason}" if reason.startswith("is not ") else reason
    bounds = _bounds(place.field)
    if kind in {"greater_than_equal", "less_than_equal", "greater_than", "less_than"} and bounds:
        return f"{shown} is out of range (allowed: {bounds})"
    if kind == "string_pattern_mismatch":
        hint = _HINTS.get(last, f"it must match {each['ctx']['pattern']}")
        return f"{shown} is not allowed; {hint}"
    if kind == "too_short" or (kind == "string_too_short" and not given):
        return "is empty; name at least one" if kind == "too_short" else "is empty"
    if kind in {"tuple_type", "list_type"}:
        return f"{shown} is not a list; write [{last.rstrip('s')}, …]"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        allowed = [key for m in list(_models(place.annotation))[:1] for key in m.model_fields]
        keys = f" of {', '.join(allowed)}" if allowed else ""
        return f"{shown} is not a mapping{keys}"
    word = kind.partition("_")[0]
    if kind.endswith(("_type", "_parsing", "_from_float")) and word in _KINDS:
        quotes = "; write it in quotes" if word == "string" and given is not None else ""
        limit = f" (allowed: {bounds})" if bounds else ""
        return f"{shown} is not {_KINDS[word]}{limit}{quotes}"
    return f"{shown}: {str(each['msg'])[:1].lower()}{str(each['msg'])[1:]}"


MAX_PROBLEMS = 20
"""Most problems in one message; it counts the rest."""
_TOP = [*(key for key in FleetSpec.model_fields if key != "fleets"), "defaults", "fleets"]
_PATHS = (
    ("tls", "ca_file"),
    ("tls", "cert_file"),
    ("tls", "key_file"),
    ("tls", "key_password_file"),
    ("sasl", "username_file"),
    ("sasl", "password_file"),
    ("sasl", "oidc", "client_id_file"),
    ("sasl", "oidc", "client_secret_file"),
    ("sasl", "oidc", "ca_file"),
)
_SCALING_PATHS = ("authorization_file", "ca_file")


def load(path: Path, environ: Mapping[str, str], *, text: str | None = None) -> FleetSpec:
    """Reads and validates a fleet.yaml, or the text given for it.

    Relative paths in it (python_path, command, security, scaling) start at the file's folder, so
    that a run of Dagster and a shell read the same. Raises ConfigError, which lists every problem
    as `file:line: key: error, allowed values`.
    """
    return _loaded(_read(path) if text is None else text, path, environ)


def group_lines(path: Path, environ: Mapping[str, str]) -> dict[str, int]:
    """Returns the line of each fleet of a valid fleet.yaml, by group."""
    root, _ = read_tree(_read(path), environ)
    fleets = None if root is None else root.value.get("fleets")
    found = [] if fleets is None else fleets.value or []
    return {each.value["group"].plain(): each.line for each in found}


class LoginFile(NamedTuple):
    """Holds a login that a separate file describes."""

    security: Security
    bootstrap: str | None
    left_out: tuple[str, ...]
    """Keys without a setting in fleet.yaml."""


def load_security(
    path: Path, environ: Mapping[str, str], variables: Mapping[str, str]
) -> LoginFile:
    """Reads a login from a separate file. Raises ConfigError.

    A YAML file (`.yaml`, `.yml`) holds the block under `security:`, with or without that key. Any
    other file configures Kafka's Java clients or librdkafka; `variables` as in client_properties.
    """
    text, properties = _read(path), ClientProperties({}, None, ())
    if path.suffix.lower() not in {".yaml", ".yml"}:
        properties = client_properties(text, file=str(path), variables=variables)
        text = "security: " + json.dumps(properties.security, ensure_ascii=False).replace(
            "${", "$${"
        )
    elif variables:
        raise ConfigError(
            f"--secret-env applies to .properties files only; in {path} write …_env keys instead"
        )
    above = 1
    if not re.search(r"^security:", text, re.MULTILINE):
        text, above = "security:\n" + textwrap.indent(text, "  "), 2
    text = "cluster:\n" + textwrap.indent(text, "  ")
    security = _loaded(text, path, environ, above=above).cluster.security
    return LoginFile(security, properties.bootstrap, properties.left_out)


def _loaded(text: str, path: Path, environ: Mapping[str, str], *, above: int = 0) -> FleetSpec:
    """Validates a text; its first `above` lines are not in the file."""
    root, problems = read_tree(text, environ)
    if (root is None or root.value is None) and not problems:
        raise ConfigError(
            f"{path} is empty: write at least cluster: and fleets:, or run `fleet init --bootstrap "
            "HOST:PORT --force` to write it from the groups of a cluster"
        )
    if root is not None and not isinstance(root.value, dict):
        problems.append(root.problem(f"is not a mapping of {', '.join(_TOP)}"))
    if root is None or not isinstance(root.value, dict):
        raise _error(path, problems, above)
    problems += _resolve_files(root, path.absolute().parent)
    merged = _merged(root, problems)
    spec = _validated(merged, problems)
    if spec is None or problems:
        raise _error(path, problems, above)
    here = path.absolute().parent
    return spec.model_copy(update={"fleets": tuple(_from(here, each) for each in spec.fleets)})


def _from(folder: Path, group: GroupSpec) -> GroupSpec:
    """Makes the files that a command names absolute, unless they are an image's."""
    worker = group.worker
    if worker is None or not worker.command or group.runtime.kind != "local":
        return group
    program, *others = worker.command
    named = [program if "/" not in program else str(folder / program)]
    named += [str(folder / word) if (folder / word).is_file() else word for word in others]
    changed = worker.model_copy(update={"command": tuple(named)})
    return group.model_copy(update={"worker": changed})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist: run `fleet init --bootstrap HOST:PORT` to write one from the "
            "groups of a cluster, or name another file with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from (
            error
        )
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _error(path: Path, problems: list[Problem], above: int) -> ConfigError:
    own = {replace(each, line=max(1, each.line - above)) for each in problems}
    unique = sorted(own, key=lambda p: (p.line, p.path, p.text))
    lines = [problem.render(str(path)) for problem in unique[:MAX_PROBLEMS]]
    if len(unique) > MAX_PROBLEMS:
        lines.append(f"and {len(unique) - MAX_PROBLEMS} more")
    return ConfigError("\n".join(lines))


def _resolve_files(root: YamlNode, folder: Path) -> list[Problem]:
    """Makes paths absolute from the file's folder; returns those that cannot be paths."""
    problems: list[Problem] = []

    def resolve(node: YamlNode) -> None:
        if not isinstance(node.value, str) or not node.value:
            return
        try:
            node.value = str((folder / Path(node.value).expanduser()).resolve())
        except (ValueError, RuntimeError, OSError) as error:
            shown = node.shown or repr(node.value)
            problems.append(node.problem(f"{shown} cannot be a path: {error}"))

    for steps in _PATHS:
        node, rest = root.at(("cluster", "security", *steps))
        if not rest:
            resolve(node)
    fleets, rest = root.at(("fleets",))
    entries = fleets.value if not rest and isinstance(fleets.value, list) else []
    for owner in [*entries, root.at(("defaults",))[0], *_wanted_members(root)]:
        node, rest = owner.at(("worker", "python_path"))
        for folder_node in node.value if not rest and isinstance(node.value, list) else []:
            resolve(folder_node)
        for key in _SCALING_PATHS:
            node, rest = owner.at(("scaling", key))
            if not rest:
                resolve(node)
    return problems


def _wanted_members(root: YamlNode) -> list[YamlNode]:
    node, rest = root.at(("exporter", "wanted_members"))
    return node.value if not rest and isinstance(node.value, list) else []


# --- defaults ------------------------------------------------------------------------------


def _merged(root: YamlNode, problems: list[Problem]) -> YamlNode:
    """Returns the tree with `defaults` merged into every fleet."""
    top: dict[str, YamlNode] = dict(root.value)
    defaults = top.pop("defaults", None)
    _refuse_unknown(top, _TOP, problems)
    fleets = top.get("fleets")
    if fleets is not None and fleets.value is None:
        top["fleets"] = fleets = replace(fleets, value=[])  # `fleets:` with nothing below
    if defaults is not None and defaults.value is not None:
        _check_defaults(defaults, problems)
    shared = defaults.value if defaults is not None and isinstance(defaults.value, dict) else {}
    if fleets is not None and isinstance(fleets.value, list):
        top["fleets"] = replace(
            fleets, value=[_with_tags(_under(shared, fleet)) for fleet in fleets.value]
        )
        _check_groups(fleets.value, problems)
    sized = _wanted_members(root)
    sized[:] = map(_with_tags, sized)
    return replace(root, value=top)


def _check_defaults(defaults: YamlNode, problems: list[Problem]) -> None:
    allowed = [key for key in GroupSpec.model_fields if key != "group"]
    if not isinstance(defaults.value, dict):
        problems.append(defaults.problem(f"is not a mapping of {', '.join(allowed)}"))
    else:
        _refuse_unknown(defaults.value, allowed, problems)


def _refuse_unknown(
    found: dict[str, YamlNode], allowed: list[str], problems: list[Problem]
) -> None:
    unknown = [key for key in found if key not in allowed]
    problems.extend(
        found.pop(key).problem(f"unknown key{nearest(key, allowed)}") for key in unknown
    )


def _check_groups(fleets: list[YamlNode], problems: list[Problem]) -> None:
    first: dict[str, YamlNode] = {}
    for fleet in fleets:
        group = fleet.value.get("group") if isinstance(fleet.value, dict) else None
        if group is None or not isinstance(group.value, str):
            continue
        if group.value in first:
            line = first[group.value].line
            text = f"{group.value!r} is already declared in line {line}; remove one"
            problems.append(group.problem(text))
        first.setdefault(group.value, group)


def _under(shared: dict[str, YamlNode], fleet: YamlNode) -> YamlNode:
    if not isinstance(fleet.value, dict):
        return fleet
    merged = dict(fleet.value)
    for key, node in shared.items():
        complete = isinstance(node.value, dict) and {"entrypoint", "command"} & node.value.keys()
        if key in merged:
            merged[key] = _merge(key, node, merged[key])
        elif key != "worker" or complete:
            merged[key] = node
    return replace(fleet, value=merged)


def _merge(key: str, below: YamlNode, own: YamlNode) -> YamlNode:
    """Merges `own` over `below`; a mapping with another tag replaces it whole."""
    if not isinstance(below.value, dict) or not isinstance(own.value, dict):
        return own
    if key == "worker" and {"entrypoint", "command"} <= below.value.keys() | own.value.keys():
        return own
    if key in _TAGS:
        name, default = _TAGS[key]
        written = own.value.get(name)
        inherited = below.value.get(name)
        if written is not None and written.value != (inherited.value if inherited else default):
            return own
    merged = dict(below.value)
    for inner, node in own.value.items():
        merged[inner] = _merge(inner, merged[inner], node) if inner in merged else node
    return replace(own, value=merged)


def _with_tags(fleet: YamlNode) -> YamlNode:
    """Adds the default tag to tagged mappings that name none."""
    if not isinstance(fleet.value, dict):
        return fleet
    tagged = dict(fleet.value)
    for key, (name, default) in _TAGS.items():
        node = tagged.get(key)
        if node is not None and isinstance(node.value, dict) and name not in node.value:
            tag = YamlNode(value=default, line=node.line, path=join(node.path, name))
            tagged[key] = replace(node, value={**node.value, name: tag})
    return replace(fleet, value=tagged)


# --- validation ----------------------------------------------------------------------------


def _validated(root: YamlNode, problems: list[Problem]) -> FleetSpec | None:
    _rewrite_references(root)
    secrets = _inline_secrets(root)
    problems.extend(secrets)
    known_lines = {problem.line for problem in secrets}
    plain: dict[str, Any] = root.plain()
    try:
        return FleetSpec.model_validate(plain)
    except ValidationError as error:
        if problems:
            # The tree already reported some of them (a duplicate group, a variable not set).
            reported = {problem.path for problem in problems}
            found = [p for p in problems_of(error, root) if p.path and p.path not in reported]
        else:
            found = problems_of(error, root)
        problems.extend(p for p in found if p.line not in known_lines or "secret" in p.text)
        return None


def _rewrite_references(root: YamlNode) -> None:
    """Turns `password: ${NAME}` into `password_env: NAME`, for every key of LOGIN."""
    for path in LOGIN:
        *steps, part = path.split(".")
        owner, rest = root.at(tuple(steps))
        if rest or not isinstance(owner.value, dict):
            continue
        node = owner.value.get(part)
        name = only_reference(node.value) if node and isinstance(node.value, str) else None
        if node is not None and name is not None and f"{part}_env" not in owner.value:
            del owner.value[part]
            owner.value[f"{part}_env"] = replace(node, value=name)


def _inline_secrets(root: YamlNode) -> list[Problem]:
    """Finds secrets under cluster.security at any depth, before anything else reads them."""
    security, rest = root.at(("cluster", "security"))
    if rest:
        return []
    found: list[Problem] = []
    waiting = [security]
    while waiting:
        node = waiting.pop()
        for key, child in node.value.items() if isinstance(node.value, dict) else ():
            if is_secret_key(key):
                found.append(child.problem(refuse_secret(key)))
            else:
                waiting.append(child)
    return found
