"""YAML text as a tree that remembers where each value was written.

Problem: an error in a file of a thousand fleets is of use only with its line, also where the
value was inherited from `defaults:`. Choice: PyYAML's composed nodes become our own `YamlNode`s
with line and path, so that merging moves a value together with its origin. Cost: anchors are
expanded (bounded), merge keys (`<<`) are refused in favour of `defaults:`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from fleet.config.references import expand, looked_up_late, malformed

MAX_NODES = 200_000
"""Values in one file, aliases expanded: an alias bomb ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of a ConfigError: where, which key, what is wrong."""

    line: int
    path: str
    text: str

    def render(self, file: str) -> str:
        """`fleet.yaml:12: fleets[0].group: …`."""
        where = f"{self.path}: " if self.path else ""
        return f"{file}:{self.line}: {where}{self.text}"


@dataclass(slots=True, kw_only=True)
class YamlNode:
    """A mapping, a list or a scalar, with the line (from 1) and the path it was written at."""

    value: Any
    line: int
    path: str
    shown: str | None = None
    """The text to show in an error instead of the value: `${NAME}` as written, not what it held."""

    def plain(self) -> Any:
        """The value without its origin."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def at(self, steps: tuple[str | int, ...]) -> tuple["YamlNode", tuple[str | int, ...]]:
        """The deepest node on that way, and the steps that lead on from it."""
        node = self
        for index, step in enumerate(steps):
            held = node.value
            inside = isinstance(held, list) and isinstance(step, int) and step < len(held)
            if not inside and not (isinstance(held, dict) and step in held):
                return node, steps[index:]
            node = held[step]
        return node, ()


def join(path: str, step: str | int) -> str:
    """`fleets` and 0 → `fleets[0]`; `fleets[0]` and `worker` → `fleets[0].worker`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


@dataclass(slots=True)
class YamlReading:
    """Turns composed YAML into Nodes, expands `${NAME}`, collects what is wrong on the way."""

    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    _count: int = 0
    _open: set[int] = field(default_factory=set)
    _constructor: yaml.constructor.SafeConstructor = field(
        default_factory=yaml.constructor.SafeConstructor
    )

    def node(self, source: yaml.Node, path: str = "", line: int | None = None) -> YamlNode:
        """One composed node and all below it; `line` is that of its key where it has one."""
        at = source.start_mark.line + 1 if line is None else line
        self._count += 1
        if self._count > MAX_NODES or id(source) in self._open:
            text = (
                "an alias contains itself"
                if id(source) in self._open
                else f"more than {MAX_NODES:,} values; split the file by cluster"
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

    def _mapping(self, source: yaml.MappingNode, path: str, line: int) -> YamlNode:
        held: dict[str, YamlNode] = {}
        for key_node, value_node in source.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(line=at, path=path, text="a key must be a word"))
                continue
            # The text as written: YAML 1.1 would read the key `on` as true.
            key = str(key_node.value)
            if key == "<<":
                text = "merge keys (<<) are not supported; write what fleets share under defaults:"
                self.problems.append(Problem(line=at, path=path, text=text))
                continue
            if key in held:
                text = f"is written twice, first in line {held[key].line}; keep one"
                self.problems.append(Problem(line=at, path=join(path, key), text=text))
                continue
            held[key] = self.node(value_node, join(path, key), at)
        return YamlNode(value=held, line=line, path=path)

    def _scalar(self, source: yaml.Node, path: str, line: int) -> YamlNode:
        try:
            value = self._constructor.construct_object(source)
        except (yaml.YAMLError, ValueError) as error:
            text = f"{source.value!r} cannot be read ({_problem_of(error)}); write it in quotes"
            self.problems.append(Problem(line=line, path=path, text=text))
            return YamlNode(value=None, line=line, path=path)
        # YAML 1.1 reads on, yes and 2026-11-21 as other than text; YAML 1.2 and people do not.
        word = isinstance(value, bool) and source.value.lower() not in {"true", "false"}
        if word or not (value is None or isinstance(value, bool | int | float | str)):
            value = source.value
        if not isinstance(value, str):
            return YamlNode(value=value, line=line, path=path)
        return self._expanded(value, path, line)

    def _expanded(self, text: str, path: str, line: int) -> YamlNode:
        if looked_up_late(path, text):
            value, missing = text, malformed(text)
        else:
            value, missing = expand(text, self.environ)
        self.problems.extend(Problem(line=line, path=path, text=each) for each in missing)
        return YamlNode(value=value, line=line, path=path, shown=text if value != text else None)


def _problem_of(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error)


def read_tree(text: str, environ: Mapping[str, str]) -> tuple[YamlNode | None, list[Problem]]:
    """The file's tree (None where it is empty or no YAML) and what is wrong with it."""
    try:
        return _read_tree(text, environ)
    except RecursionError:
        told = "nests deeper than any setting; look for brackets that are never closed"
        return None, [Problem(line=1, path="", text=told)]


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
        return None, [Problem(line=line, path="", text=f"is no YAML: {_problem_of(error)}{hint}")]
    except yaml.YAMLError as error:
        return None, [Problem(line=1, path="", text=f"is no YAML: {_problem_of(error)}")]
    if source is None:
        return None, []
    reading = YamlReading(environ=environ)
    return reading.node(source), reading.problems
