"""What the definitions need from outside: the declared fleets, and a `Fleet` per use.

Problem: Kafka clients opened while definitions load would live in every code server and run
worker, and a fleet.yaml read once would grow old. Choice: loading definitions only reads the
file (no Kafka, no Spark is imported); every tick, check and run opens its own Fleet, which
reads the file again. Cost: some 50 ms a use, and a group that is new in the file becomes an
asset only when the code location is reloaded.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import ConfigurableResource, Failure
from pydantic import Field

from fleet.config.load import load
from fleet.config.spec import FleetSpec
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


def declared(environ: Mapping[str, str] = os.environ) -> FleetSpec:
    """The fleets of `$FLEET_CONFIG` or ./fleet.yaml.

    Raises ConfigError, whose one sentence the web page shows for the code location.
    """
    return load(Path(environ.get("FLEET_CONFIG") or "fleet.yaml"), environ)


class FleetResource(ConfigurableResource):  # type: ignore[type-arg]
    """Opens the fleet that fleet.yaml declares."""

    config: str = Field(default="", description="path of fleet.yaml; empty: $FLEET_CONFIG")
    home: str = Field(default="", description="folder of state; empty: $FLEET_HOME")

    def environment(self) -> dict[str, str]:
        """What a process of its own needs to find the same file and folder."""
        made = {"FLEET_CONFIG": self.config, "FLEET_HOME": self.home}
        return {name: value for name, value in made.items() if value}

    @contextmanager
    def open(self) -> Iterator["Fleet"]:
        """A Fleet for one use; FleetErrors pass through."""
        from fleet.manager.cycle import Fleet  # noqa: PLC0415  imports Kafka: only where it is used

        config = Path(self.config) if self.config else None
        home = Path(self.home) if self.home else None
        with Fleet.open(config, home=home) as opened:
            yield opened


@contextmanager
def told() -> Iterator[None]:
    """Turn a FleetError inside an op into a Failure that says its sentence and is not retried.

    A change is resumed under its lease, never repeated by Dagster [35, 36].
    """
    try:
        yield
    except FleetError as error:
        raise Failure(
            description=str(error),
            metadata={"kind": type(error).__name__},
            allow_retries=False,
        ) from error
