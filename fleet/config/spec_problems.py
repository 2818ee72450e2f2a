"""What pydantic found wrong with a specification, as lines a person can act on.

Problem: pydantic names a model, a union tag and an error type; the author of a fleet.yaml
needs the key as written, the value, the nearest or all allowed ones. Choice: the schema
itself (the annotations of `fleet.config.spec`) is asked what is allowed at an error's place, so a
new key or bound needs no second list. Cost: this walks typing's internals.
"""

import difflib
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fleet.config.spec import FleetSpec, seconds
from fleet.config.yaml_tree import Problem, YamlNode, join

_TAGS = {"worker": "protocol", "scaling": "policy", "runtime": "kind"}
_SECRET = re.compile(r"password|secret|token|jaas|passphrase", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)\S*@")
"""In an address: nobody should write one there, and nobody sees it then."""
_HINTS = {
    "entrypoint": "write package.module:function",
    "name": "write letters, digits, '.', '_' and '-', up to 64, the first a letter or digit",
    "spark": "write shared, sc://host:port or local[n]",
}
_KINDS = {"int": "whole number", "float": "number", "bool": "true or false", "string": "text"}


def problems_of(
    error: ValidationError, root: YamlNode, spec: type[BaseModel] = FleetSpec
) -> list[Problem]:
    """Every finding of one validation against `spec`, in the file's order, each once."""
    given: list[dict[str, Any]] = [dict(each) for each in error.errors(include_url=False)]
    # A list whose entries are wrong counts as too short as well: only the entries are told.
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
    """`; nearest: range (allowed: range, cooperative-sticky)`; without the first where none is."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    listed = ", ".join(allowed)
    return f"; nearest: {close[0]} (allowed: {listed})" if close else f" (allowed: {listed})"


def is_secret_key(key: str) -> bool:
    """Whether a key asks for a secret's value; `…_env` and `…_file` name a place instead."""
    return bool(_SECRET.search(key)) and not key.endswith(("_env", "_file"))


def never_inline(key: str) -> str:
    """What to do with a secret instead of writing it down."""
    return (
        f"a secret is never written in the file; write {key}_env with the name of an "
        f"environment variable, or {key}_file with a path"
    )


def _problem(each: dict[str, Any], root: YamlNode, spec: type[BaseModel]) -> Problem:
    place = _Place.of(each["loc"], spec)
    node, rest = root.at(place.steps)
    path = node.path
    for step in rest:
        path = join(path, step)
    if each["type"] == "union_tag_invalid":
        tag = _TAGS.get(str(place.steps[-1]), "")
        allowed = [a.strip(" '") for a in str(each["ctx"]["expected_tags"]).split(",")]
        node, _ = root.at((*place.steps, tag))
        word = str(each["ctx"]["tag"])
        return Problem(line=node.line, path=join(path, tag), text=_not_allowed(node, word, allowed))
    if each["type"] == "extra_forbidden":
        return Problem(line=node.line, path=path, text=_unknown_key(place))
    text = _text(each, place, node)
    return Problem(line=_line_named(text, node), path=path, text=text)


def _line_named(text: str, node: YamlNode) -> int:
    """What two keys cause together is on the line of the first one named that was written."""
    for key in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", text):
        found, rest = node.at(tuple(key.split(".")))
        if not rest:
            return found.line
    return node.line


class _Place:
    """Where an error is: the keys as written, and what the schema says of that place."""

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
        """Walk the annotations along pydantic's location, dropping the union tags in it."""
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
    """Without Annotated and without `| None`."""
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
    for key in _TAGS.values():
        info = model.model_fields.get(key)
        if info is not None and get_origin(info.annotation) is Literal:
            return str(get_args(info.annotation)[0])
    return None


def _literals(annotation: Any) -> list[str]:
    bare = _bare(annotation)
    return [str(a) for a in get_args(bare)] if get_origin(bare) is Literal else []


def _bounds(info: FieldInfo | None) -> str:
    """`1 to 10000`, as the field's limits say; empty where it has none."""
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
    """The value in quotes; as written where it came from the environment."""
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
        return never_inline(key)
    if place.union is not None and place.tag is not None:
        for other in _models(place.union):
            if key in other.model_fields and place.tag != _tag_of(other):
                kind = next(t for t in _TAGS.values() if t in other.model_fields)
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
        said = str(each["ctx"]["error"])
        return f"{shown} {said}" if said.startswith("is no ") else said
    bounds = _bounds(place.field)
    if kind in {"greater_than_equal", "less_than_equal", "greater_than", "less_than"} and bounds:
        return f"{shown} is out of range (allowed: {bounds})"
    if kind == "string_pattern_mismatch":
        hint = _HINTS.get(last, f"it must match {each['ctx']['pattern']}")
        return f"{shown} is not allowed; {hint}"
    if kind == "too_short" or (kind == "string_too_short" and not given):
        return "is empty; name at least one" if kind == "too_short" else "is empty"
    if kind in {"tuple_type", "list_type"}:
        return f"{shown} is no list; write [{last.rstrip('s')}, …]"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        allowed = [key for m in list(_models(place.annotation))[:1] for key in m.model_fields]
        keys = f" of {', '.join(allowed)}" if allowed else ""
        return f"{shown} is no mapping{keys}"
    word = kind.partition("_")[0]
    if kind.endswith(("_type", "_parsing", "_from_float")) and word in _KINDS:
        quotes = "; write it in quotes" if word == "string" and given is not None else ""
        limit = f" (allowed: {bounds})" if bounds else ""
        return f"{shown} is no {_KINDS[word]}{limit}{quotes}"
    return f"{shown}: {str(each['msg'])[:1].lower()}{str(each['msg'])[1:]}"
