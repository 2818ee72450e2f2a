"""Opens what the definitions of a cluster need: its declared fleets, and a `Fleet` for each use.

Problem: a Kafka client that opens with the definitions would live in every code server and run
worker, and a fleet.yaml that is read once gets old. Choice: loading the definitions only reads the
file and imports neither Kafka nor Spark. Every tick, check and run opens its own Fleet, which reads
the file again. The definitions keep this value under no resource key, so that a code location can
hold several clusters. Cost: about 50 ms a use; a new group becomes an asset only when the code
location is reloaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dagster import ConfigurableResource, Failure
from pydantic import Field, TypeAdapter

from fleet.config.load import group_lines, load
from fleet.config.spec import FleetSpec, PinTime, Selection
from fleet.errors import ConfigError, FleetError

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


class FleetResource(ConfigurableResource):  # type: ignore[type-arg]
    """Opens one fleet.yaml, which declares the fleets of one cluster.

    Args:
        config (str): Path of fleet.yaml. Defaults to `$FLEET_CONFIG`, or fleet.yaml in the current
            folder.
        home (str): State directory. Defaults to `$FLEET_HOME`, or .fleet in the current folder.
        allow (list[str]): Regular expressions of groups to show and change. Defaults to all
            declared groups, and the others that `dagster.groups` of fleet.yaml takes.
        deny (list[str]): Regular expressions of groups to leave out.

    Examples:
        .. code-block:: python

            from fleet.dagster import FleetResource, build_definitions

            defs = build_definitions(FleetResource(config="fleet.yaml"))
    """

    config: str = Field(default="", description="path of fleet.yaml (default: $FLEET_CONFIG)")
    home: str = Field(default="", description="state directory (default: $FLEET_HOME)")
    allow: list[str] = Field(default=[], description="groups to include (default: all)")
    deny: list[str] = Field(default=[], description="groups to exclude")

    @classmethod
    def of(cls, spec: FleetSpec) -> Self:
        """Returns the resource of a spec that is loaded already."""
        made = cls()
        vars(made)["spec"] = spec
        return made

    @cached_property
    def spec(self) -> FleetSpec:
        """The content of fleet.yaml when the definitions were loaded.

        Raises ConfigError, whose sentence the web page shows for the code location.
        """
        return self._select(load(self.path, os.environ))

    @property
    def group_lines(self) -> dict[str, int]:
        """Returns the line of each group in the file; none if the spec was given, not read."""
        path = self.path
        return group_lines(path, os.environ) if path.exists() else {}

    @property
    def path(self) -> Path:
        """Returns the path of fleet.yaml."""
        return Path(self.config or os.environ.get("FLEET_CONFIG") or "fleet.yaml").absolute()

    def _select(self, spec: FleetSpec) -> FleetSpec:
        """Returns the spec without the fleets that the selection leaves out."""
        if not self.allow and not self.deny:
            return spec
        groups = Selection.model_validate({"allow": self.allow or [".*"], "deny": self.deny})
        fleets = tuple(each for each in spec.fleets if groups.takes(each.group))
        dagster = spec.dagster.model_copy(update={"groups": groups})
        return spec.model_copy(update={"fleets": fleets, "dagster": dagster})

    def environment(self) -> dict[str, str]:
        """Returns the environment in which another process finds the same file and folder."""
        made = {"FLEET_CONFIG": self.config, "FLEET_HOME": self.home}
        return {name: value for name, value in made.items() if value}

    @contextmanager
    def open(self) -> Iterator["Fleet"]:
        """Opens a Fleet for one use; FleetErrors pass through."""
        from fleet.manager.cycle import Fleet  # noqa: PLC0415  imports Kafka

        config = Path(self.config) if self.config else None
        home = Path(self.home) if self.home else None
        with Fleet.open(config, home=home) as opened:
            opened.spec = self._select(opened.spec)
            yield opened


@contextmanager
def fleet_errors_as_failures() -> Iterator[None]:
    """Turns a FleetError in an op into a Failure with its sentence and without a retry.

    Dagster must not repeat a change: the next run resumes it under its lease [35, 36].
    """
    try:
        yield
    except FleetError as error:
        raise Failure(
            description=str(error),
            metadata={"kind": type(error).__name__},
            allow_retries=False,
        ) from error


def parse_time(name: str, value: str) -> float:
    """Returns the seconds of a time in a run's config. Raises ConfigError."""
    try:
        return TypeAdapter(PinTime).validate_python(value)
    except ValueError as error:
        raise ConfigError(
            f"{name} {value!r} is no time between 1s and 30d: write one such as 2h"
        ) from error
