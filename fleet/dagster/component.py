"""One fleet.yaml as a Dagster component, for projects that consist of `defs.yaml` files.

Problem: a `dg` project has no module that could call `build_definitions`. Choice: a component
builds the same definitions. Each instance reads the fleet.yaml beside its `defs.yaml` and keeps
that path, so a project may hold one instance per cluster. Cost: keys stay Fleet's own, because
sensors and checks report under them; `translation` changes every other attribute of an asset.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from dagster import (
    AssetExecutionContext,
    AssetSpec,
    Component,
    ComponentLoadContext,
    Definitions,
    MaterializeResult,
    Model,
    Resolvable,
    Resolver,
    Scaffolder,
    ScaffoldRequest,
    scaffold_with,
)
from dagster.components import scaffold_component
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field

from fleet.dagster.change_assets import RolloutConfig, execute_rollout
from fleet.dagster.definitions import cluster_definitions
from fleet.dagster.resources import FleetResource


class FleetScaffoldParams(BaseModel):
    """The options of `dg scaffold defs fleet.dagster.FleetComponent`."""

    bootstrap: str = Field(
        default="embedded",
        description="Addresses of brokers as host:port,host:port (default: Fleet's test broker).",
    )
    config: str = Field(
        default="fleet.yaml",
        description="Path of fleet.yaml, relative to defs.yaml; written if it does not exist.",
    )


_FLEET_YAML = """\
# `fleet init --force --config {path}` writes the cluster's groups here.
cluster: {{name: {cluster}, bootstrap_servers: "{bootstrap}"}}
mode: observe
fleets: []
"""


class FleetScaffolder(Scaffolder[FleetScaffoldParams]):
    """Writes defs.yaml, and a fleet.yaml beside it that names the cluster."""

    @classmethod
    def get_scaffold_params(cls) -> type[FleetScaffoldParams]:
        """Returns the model of the options."""
        return FleetScaffoldParams

    def scaffold(self, request: ScaffoldRequest[FleetScaffoldParams]) -> None:
        """Writes both files; an existing fleet.yaml stays as it is."""
        folder, given = request.target_path, request.params
        scaffold_component(request, {"config": given.config})
        path = folder / given.config
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            cluster = re.sub(r"[^A-Za-z0-9._-]", "-", folder.name).strip("._-") or "main"
            shown = os.path.relpath(path)
            path.write_text(
                _FLEET_YAML.format(path=shown, cluster=cluster, bootstrap=given.bootstrap),
                encoding="utf-8",
            )


@dataclass(frozen=True)
class FleetAssetProps:
    """What one asset of a fleet.yaml stands for; `translation` knows it as `data`.

    Attributes:
        kind (str): `topics`, `groups`, `discovered_groups`, `plan`, `rollout`, `history` or
            `tables`.
        cluster (str): The name of the cluster.
        name (str): The Kafka name of the group or topic, or the name of the table.
        spec (AssetSpec): The asset as Fleet declares it.
    """

    kind: str
    cluster: str
    name: str
    spec: AssetSpec

    @classmethod
    def of(cls, spec: AssetSpec, cluster: str) -> "FleetAssetProps":
        """Returns the properties of an asset of this cluster."""
        kind, *rest = spec.key.path[1:]
        named = spec.metadata.get("group") or spec.metadata.get("topic") or "/".join(rest)
        return cls(kind=kind, cluster=cluster, name=named or kind, spec=spec)


class GroupSelector(Model, Resolvable):
    """Selects the groups whose whole id matches a pattern of `allow` and none of `deny`.

    Args:
        allow (list[str]): Regular expressions of groups to include. Defaults to all.
        deny (list[str]): Regular expressions of groups to exclude.
    """

    allow: list[str] = Field(default=[".*"])
    deny: list[str] = Field(default=[])


@scaffold_with(FleetScaffolder)
@dataclass
class FleetComponent(Component, Resolvable):
    """Shows the consumer groups of a Kafka cluster as assets, and rolls plans of them out.

    One instance stands for one fleet.yaml. It defines assets of topics, groups, plans, rollouts and
    history tables, checks of lag, storms and receipts, and the schedules and sensors of these. It
    sets no executor and no resource, so a project may hold several instances.

    To create one, run
    `dg scaffold defs fleet.dagster.FleetComponent kafka --bootstrap broker-1:9092`.

    Examples:
        .. code-block:: yaml

            type: fleet.dagster.FleetComponent
            attributes:
              config: fleet.yaml
              groups: {deny: ["test-.*"]}
              translation:
                group_name: "kafka_{{ data.cluster }}"
    """

    config: Annotated[
        str, Resolver.default(description="Path of fleet.yaml, relative to this defs.yaml.")
    ] = "fleet.yaml"
    home: Annotated[
        str,
        Resolver.default(
            description="State directory, relative to this defs.yaml (default: $FLEET_HOME)."
        ),
    ] = ""
    groups: Annotated[
        GroupSelector | None,
        Resolver.default(
            description="Groups to show and change (default: the declared ones, and those that "
            "dagster.groups of fleet.yaml takes)."
        ),
    ] = None
    blocking_checks: Annotated[
        list[str],
        Resolver.default(
            description="Checks whose failure keeps assets behind a group from running in the same "
            "job: lag, freshness, storm, receipt (default: none)."
        ),
    ] = field(default_factory=list)
    translation: Annotated[
        TranslationFn[FleetAssetProps] | None,
        TranslationFnResolver[FleetAssetProps](lambda data: {"data": data}),
    ] = None

    def get_asset_spec(self, props: FleetAssetProps) -> AssetSpec:
        """Returns the spec of one asset; override it to change any attribute but the key.

        Args:
            props (FleetAssetProps): What the asset stands for, with Fleet's own spec of it.

        Returns:
            AssetSpec: That spec with the attributes of `translation`.
        """
        return self.translation(props.spec, props) if self.translation else props.spec

    def execute(
        self, context: AssetExecutionContext, fleet: FleetResource, config: RolloutConfig
    ) -> MaterializeResult[None]:
        """Rolls out the plan of the run's partition; override it to act before or after.

        Args:
            context (AssetExecutionContext): The context of the rollout asset.
            fleet (FleetResource): Opens this component's fleet.yaml.
            config (RolloutConfig): The run's config.

        Returns:
            MaterializeResult: The receipt. Raises Failure if the change did not end well.
        """
        return execute_rollout(context, fleet, config)

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the definitions. Raises ConfigError if fleet.yaml is missing or wrong."""
        folder = context.path if context.path.is_dir() else context.path.parent
        selection = {} if self.groups is None else self.groups.model_dump()
        fleet = FleetResource(
            config=str(Path(folder, self.config).resolve()),
            home=str(Path(folder, self.home).resolve()) if self.home else "",
            **selection,
        )
        cluster = fleet.spec.cluster.name
        return cluster_definitions(
            fleet,
            execute=self.execute,
            blocking=self.blocking_checks,
            translate=lambda spec: self.get_asset_spec(FleetAssetProps.of(spec, cluster)),
        )
