"""fleet.yaml → FleetSpec, or every reason why not, each with its line.

Problem: the file is written by hand and a typo must start nothing; and what fleets share
must be written once. Choice: the file becomes a tree that knows its lines, `defaults:` are
merged under each fleet, `${NAME}` is expanded, pydantic judges, and its findings are put back
on the lines that caused them, up to 20 at once. Cost: the file is read three times in memory.

How `defaults:` merge: mappings key by key, a fleet's own key wins, lists are replaced. A
tagged mapping (worker by protocol, scaling by policy, runtime by kind) is replaced whole
where the fleet names another tag. A fleet without `worker:` has none, that is, it is other
people's and only observed, unless the defaults' worker is complete (has an entrypoint).
"""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fleet.config.client_properties import ClientProperties, client_properties
from fleet.config.references import LOGIN, only_reference
from fleet.config.spec import FleetSpec, GroupSpec, Security
from fleet.config.spec_problems import is_secret_key, nearest, never_inline, problems_of
from fleet.config.yaml_tree import Problem, YamlNode, join, read_tree
from fleet.errors import ConfigError

MAX_PROBLEMS = 20
"""Listed at once; the rest is counted."""
_TAGS = {
    "worker": ("protocol", "classic"),
    "scaling": ("policy", "partitions"),
    "runtime": ("kind", "local"),
}
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


def load(path: Path, environ: Mapping[str, str], *, text: str | None = None) -> FleetSpec:
    """Read and judge a fleet.yaml, or the text that it shall have.

    Relative folders and files in it (python_path, security) are taken from the file's folder,
    so that a Dagster run and a shell read the same. Raises ConfigError that lists every
    problem as `file:line: key: what is wrong, what is allowed`.
    """
    return _loaded(_read(path) if text is None else text, path, environ)


class LoginFile(NamedTuple):
    """What a file of its own says of a login."""

    security: Security
    bootstrap: str | None
    left_out: tuple[str, ...]
    """Keys that fleet.yaml has no setting for."""


def load_security(
    path: Path, environ: Mapping[str, str], variables: Mapping[str, str]
) -> LoginFile:
    """A login out of a file of its own. Raises ConfigError.

    YAML (`.yaml`, `.yml`): the block under `security:`, with that key or without. Anything else is
    a configuration of Kafka's Java clients or of librdkafka; `variables` as client_properties has.
    """
    text, held = _read(path), ClientProperties({}, None, ())
    if path.suffix.lower() not in {".yaml", ".yml"}:
        held = client_properties(text, file=str(path), variables=variables)
        text = "security: " + json.dumps(held.security, ensure_ascii=False).replace("${", "$${")
    elif variables:
        raise ConfigError(f"--secret-env is for files of properties; {path} names its own")
    above = 1
    if not re.search(r"^security:", text, re.MULTILINE):
        text, above = "security:\n" + textwrap.indent(text, "  "), 2
    text = "cluster:\n" + textwrap.indent(text, "  ")
    security = _loaded(text, path, environ, above=above).cluster.security
    return LoginFile(security, held.bootstrap, held.left_out)


def _loaded(text: str, path: Path, environ: Mapping[str, str], *, above: int = 0) -> FleetSpec:
    """`above`: lines of the text that are not the file's."""
    root, problems = read_tree(text, environ)
    if (root is None or root.value is None) and not problems:
        raise ConfigError(
            f"{path} is empty: write at least cluster: and fleets:, or run `fleet init --bootstrap "
            "HOST:PORT --force`, which writes both from the groups it finds"
        )
    if root is not None and not isinstance(root.value, dict):
        problems.append(
            Problem(line=root.line, path="", text=f"is no mapping of {', '.join(_TOP)}")
        )
    if root is None or not isinstance(root.value, dict):
        raise _error(path, problems, above)
    problems += _resolve_files(root, path.absolute().parent)
    merged = _merged(root, problems)
    spec = _judged(merged, problems)
    if spec is None or problems:
        raise _error(path, problems, above)
    return spec


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist: run `fleet init --bootstrap HOST:PORT` to write one from the "
            "groups of a cluster, or name another file with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text (byte {error.start}); save it as UTF-8") from (
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
    """Paths as the file's folder has them; what cannot be one."""
    problems: list[Problem] = []

    def resolve(node: YamlNode) -> None:
        if not isinstance(node.value, str) or not node.value:
            return
        try:
            node.value = str((folder / Path(node.value).expanduser()).resolve())
        except (ValueError, RuntimeError, OSError) as error:
            text = f"{node.shown or node.value!r} is no path of a file here: {error}"
            problems.append(Problem(line=node.line, path=node.path, text=text))

    for steps in _PATHS:
        node, rest = root.at(("cluster", "security", *steps))
        if not rest:
            resolve(node)
    fleets, rest = root.at(("fleets",))
    entries = fleets.value if not rest and isinstance(fleets.value, list) else []
    for owner in [*entries, root.at(("defaults",))[0]]:
        node, rest = owner.at(("worker", "python_path"))
        for folder_node in node.value if not rest and isinstance(node.value, list) else []:
            resolve(folder_node)
    return problems


# --- defaults ------------------------------------------------------------------------------


def _merged(root: YamlNode, problems: list[Problem]) -> YamlNode:
    """The tree without `defaults`, which now lie under every fleet."""
    top: dict[str, YamlNode] = dict(root.value)
    defaults = top.pop("defaults", None)
    for key in [key for key in top if key not in _TOP]:
        node = top.pop(key)
        problems.append(Problem(line=node.line, path=key, text=f"unknown key{nearest(key, _TOP)}"))
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
    return replace(root, value=top)


def _check_defaults(defaults: YamlNode, problems: list[Problem]) -> None:
    allowed = [key for key in GroupSpec.model_fields if key != "group"]
    if not isinstance(defaults.value, dict):
        text = f"is no mapping of {', '.join(allowed)}"
        problems.append(Problem(line=defaults.line, path="defaults", text=text))
        return
    for key in [key for key in defaults.value if key not in allowed]:
        node = defaults.value.pop(key)
        text = f"unknown key{nearest(key, allowed)}"
        problems.append(Problem(line=node.line, path=join("defaults", key), text=text))


def _check_groups(fleets: list[YamlNode], problems: list[Problem]) -> None:
    first: dict[str, YamlNode] = {}
    for fleet in fleets:
        group = fleet.value.get("group") if isinstance(fleet.value, dict) else None
        if group is None or not isinstance(group.value, str):
            continue
        if group.value in first:
            text = (
                f"{group.value!r} is declared twice, first in line {first[group.value].line}; "
                "keep one"
            )
            problems.append(Problem(line=group.line, path=group.path, text=text))
        first.setdefault(group.value, group)


def _under(shared: dict[str, YamlNode], fleet: YamlNode) -> YamlNode:
    if not isinstance(fleet.value, dict):
        return fleet
    held = dict(fleet.value)
    for key, node in shared.items():
        complete = isinstance(node.value, dict) and "entrypoint" in node.value
        if key in held:
            held[key] = _merge(key, node, held[key])
        elif key != "worker" or complete:
            held[key] = node
    return replace(fleet, value=held)


def _merge(key: str, below: YamlNode, own: YamlNode) -> YamlNode:
    """`own` over `below`; a mapping with another tag replaces it whole."""
    if not isinstance(below.value, dict) or not isinstance(own.value, dict):
        return own
    if key in _TAGS:
        name, default = _TAGS[key]
        written = own.value.get(name)
        inherited = below.value.get(name)
        if written is not None and written.value != (inherited.value if inherited else default):
            return own
    held = dict(below.value)
    for inner, node in own.value.items():
        held[inner] = _merge(inner, held[inner], node) if inner in held else node
    return replace(own, value=held)


def _with_tags(fleet: YamlNode) -> YamlNode:
    """The default tag of a tagged mapping that names none."""
    if not isinstance(fleet.value, dict):
        return fleet
    held = dict(fleet.value)
    for key, (name, default) in _TAGS.items():
        node = held.get(key)
        if node is not None and isinstance(node.value, dict) and name not in node.value:
            tag = YamlNode(value=default, line=node.line, path=join(node.path, name))
            held[key] = replace(node, value={**node.value, name: tag})
    return replace(fleet, value=held)


# --- judging -------------------------------------------------------------------------------


def _judged(root: YamlNode, problems: list[Problem]) -> FleetSpec | None:
    _refer(root)
    secrets = _inline_secrets(root)
    problems.extend(secrets)
    known_lines = {problem.line for problem in secrets}
    plain: dict[str, Any] = root.plain()
    try:
        return FleetSpec.model_validate(plain)
    except ValidationError as error:
        if problems:
            # What the tree already told (a twice declared group, a variable that is not set)
            # is not told again as pydantic sees it.
            told = {problem.path for problem in problems}
            found = [p for p in problems_of(error, root) if p.path and p.path not in told]
        else:
            found = problems_of(error, root)
        problems.extend(p for p in found if p.line not in known_lines or "secret" in p.text)
        return None


def _refer(root: YamlNode) -> None:
    """`password: ${NAME}` is another way to write `password_env: NAME`; so with all of LOGIN."""
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
    """Secrets written under cluster.security, at any depth: refused before anything else reads."""
    security, rest = root.at(("cluster", "security"))
    if rest:
        return []
    found: list[Problem] = []
    waiting = [security]
    while waiting:
        node = waiting.pop()
        for key, child in node.value.items() if isinstance(node.value, dict) else ():
            if is_secret_key(key):
                text = never_inline(key)
                found.append(Problem(line=child.line, path=child.path, text=text))
            else:
                waiting.append(child)
    return found
