"""What looks at all groups and tells of them; part of `fleet.config.spec`."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fleet.config.spec_cluster import Strict
from fleet.config.spec_values import ANY_CHARACTER, Duration, Pattern, SparkPlace, folder_of_tables
from fleet.model.store_address import without_login


class Selection(Strict):
    """Which groups: those that match a pattern of `allow` and none of `deny` (whole id)."""

    allow: tuple[Pattern, ...] = (".*",)
    """Patterns (whole id) of groups that are taken."""
    deny: tuple[Pattern, ...] = ()
    """Patterns of groups that are left out."""

    def takes(self, group: str) -> bool:
        """Whether a group is one of them."""
        if any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.deny):
            return False
        return any(re.fullmatch(pattern, group, ANY_CHARACTER) for pattern in self.allow)


class History(Strict):
    """Where the history of every group is kept, and for how long."""

    path: Annotated[str, AfterValidator(without_login), AfterValidator(folder_of_tables)] | None = (
        None
    )
    """Any path that Spark writes, without a login; None: `history` in FLEET_HOME."""
    retention: Annotated[Duration, Field(ge=3600.0, le=315_360_000.0)] = 2_592_000.0
    """How long rows are kept."""
    every: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 10.0
    """Between two batches of `fleet history tail`."""
    spark: SparkPlace = "shared"
    """What reads the log: the home's server, which needs Java here, or Spark elsewhere."""
    batch_timeout: Annotated[Duration, Field(ge=10.0, le=86_400.0)] = 900.0
    """Seconds that Spark may take for one batch; then it is interrupted, and nothing is lost."""
    interval: Annotated[Duration, Field(ge=0.0, le=3600.0)] = 10.0
    """Commits of a partition within this time are one row with their number; 0: each its own."""
    groups: Selection = Selection()
    """Which groups are recorded."""


class ExporterSpec(Strict):
    """Prometheus metrics of every group."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9308"
    """host:port of /metrics."""
    every: Annotated[Duration, Field(ge=1.0, le=3600.0)] = 15.0
    """Between two looks at the cluster."""
    partitions: bool = False
    """Lag per partition too: as many series as partitions times groups."""
    groups: Selection = Selection()
    """Which groups are exported."""


class UiSpec(Strict):
    """The page of `fleet ui`."""

    listen: Annotated[str, Field(pattern=r"^\S*:\d{1,5}$")] = "127.0.0.1:9309"
    """host:port of the page."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")] | None = None
    """Where people reach it (`https://fleet.example.com`): its name is answered then, and alerts
    link to it. None: at ui.listen, and alerts have no links to groups."""


class Alerts(Strict):
    """When Prometheus shall call somebody (`fleet alerts rules`)."""

    lag: Annotated[Duration, Field(ge=1.0, le=2_592_000.0)] = 600.0
    """How old the oldest waiting record of a group may be that sets no max_lag."""
    stuck: Annotated[Duration, Field(ge=5.0, le=86_400.0)] = 600.0
    """For so long a group may be unsettled, or let records wait without one commit."""
    keep: Annotated[Duration, Field(ge=0.0, le=86_400.0)] = 120.0
    """An alert lasts for so long after its cause is gone, so that a gap ends nothing."""
    runbooks: Annotated[str, Field(pattern=r"^(https?|file)://\S+$")] | None = None
    """Address of the runbooks, without the name of one. None: those that `fleet ui` serves, at
    ui.url, or at ui.listen where that is not set."""


class DagsterSpec(Strict):
    """What Dagster does by itself, as soon as it has loaded this file's fleets."""

    schedules: tuple[Literal["reconcile", "record_history"], ...] = ()
    """Schedules that run without anybody having turned them on in Dagster's page: `reconcile` plans
    every group in mode act once a minute and carries plans out, `record_history` brings the tables
    of the history up to date. Whoever turns one off in the page, turns it off."""
