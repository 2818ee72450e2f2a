"""Runtimes by name: found through the entry-point group `fleet.runtimes`.

Problem: fleet/ has no Kubernetes client in it, yet `runtime: {kind: kubernetes}` in fleet.yaml
must work. Choice: each kind is an entry point whose object opens the runtime for a manager and
the slot store for a worker (`fleet.act.runtime.RuntimeKind`). Cost: a checkout that is on the
path but not installed has no runtimes.
"""

from importlib.metadata import entry_points
from typing import Any, Final

from fleet.errors import ConfigError
from fleet.extras import EXTRAS, need

ENTRY_POINTS: Final = "fleet.runtimes"


def runtime_kind(name: str) -> Any:
    """The `RuntimeKind` of that name. ConfigError where none is installed."""
    found = entry_points(group=ENTRY_POINTS)
    for point in found:
        if point.name == name:
            if name in EXTRAS:  # its client, which its modules import
                need(name)
            return point.load()
    known = ", ".join(sorted(point.name for point in found)) or "none"
    raise ConfigError(
        f"runtime {name!r} is not installed (installed: {known}); install Fleet with "
        "`pip install .` in its clone, instead of only adding it to the path"
    )
