"""What `fleet history` wires together: the cluster, Spark, the tables and their one writer."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from fleet.acls import OFFSETS
from fleet.act import spark_server
from fleet.act.roster import Roster
from fleet.errors import ConfigError
from fleet.history.digested import digested
from fleet.history.job import Recorder
from fleet.history.places import Place
from fleet.history.polling import Poller
from fleet.history.writing import Writer
from fleet.kafka_source.login import references
from fleet.model import TopicPartition
from fleet.observe.group_log import Unreadable
from fleet.observe.lag import Logs
from fleet.processes import alive
from fleet.worker.spark_link import LINGER_SHARED, SparkLink

if TYPE_CHECKING:
    from fleet.cycle import Fleet

Say = Callable[[str], None]
SPARK: Final = re.compile(r"shared|sc://.+|local\[(\d+|\*)\]")
_SETTINGS: Final = {
    # Two tables and a few days: all files are open at once, so that Spark sorts nothing.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}
_START_SECONDS: Final = 90.0


def place_of(fleet: "Fleet") -> Place:
    """Where the tables are: `history.path`, or `history` in the home."""
    return Place(fleet.spec.history.path or fleet.home / "history")


class ClusterLog:
    """The offsets topic through Spark, the topics through the observer (fleet.history.job.Log)."""

    def __init__(self, fleet: "Fleet", spark: Callable[[], Any]) -> None:
        self._fleet = fleet
        self._spark = spark
        self._names: dict[str, str] = {}

    def bounds(self) -> Mapping[int, tuple[int, int]]:
        """Raises Unreadable."""
        return self._fleet.offsets_bounds()

    def rows(self, ranges: Mapping[int, tuple[int, int]]) -> Any:
        """The digest of the ranges."""
        fleet, history = self._fleet, self._fleet.spec.history
        return digested(
            self._spark(),
            ranges,
            options={
                "login": json.dumps(references(fleet.spec.cluster, fleet.bootstrap)),
                "topic": OFFSETS,
            },
            digest={
                "interval": int(history.interval * 1000),
                "allow": list(history.groups.allow),
                "deny": list(history.groups.deny),
            },
        )

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """Asked again only for ids that are new."""
        if not set(ids) <= self._names.keys():
            self._names |= self._fleet.topic_ids()
        return {i: self._names[i] for i in ids if i in self._names}

    def ends(self, committed: Mapping[TopicPartition, int]) -> Logs:
        """By one look."""
        return self._fleet.logs(committed)


@contextmanager
def recording(fleet: "Fleet", *, spark: str, polled: bool, say: Say) -> Iterator[Recorder | Poller]:
    """The history's writer, for one run or a tail.

    Where the offsets topic may not be read, or `polled`, the AdminClient's view is recorded.
    Raises Refused where somebody else writes there.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(
            Writer(
                place_of(fleet),
                cluster=fleet.spec.cluster.name,
                clock=fleet.clock,
                retention=fleet.spec.history.retention,
            )
        )
        if not polled:
            try:
                fleet.offsets_bounds()
            except Unreadable as error:
                say(f"{error}: groups are polled instead, generations and commits are not known")
                polled = True
        if polled:
            selected = _selection(fleet)
            yield Poller(writer, look=fleet.snapshot, wanted=selected)
            return
        session = _Session(fleet, spark, say)
        stack.callback(session.close)
        yield Recorder(writer, ClusterLog(fleet, session.get), say=say)


def _selection(fleet: "Fleet") -> Callable[[str], bool]:
    groups = fleet.spec.history.groups
    allow = [re.compile(p) for p in groups.allow]
    deny = [re.compile(p) for p in groups.deny]
    return lambda name: (
        any(p.fullmatch(name) for p in allow) and not any(p.fullmatch(name) for p in deny)
    )


class _Session:
    """Spark from the first batch on: where nothing is new, none is started."""

    def __init__(self, fleet: "Fleet", where: str, say: Say) -> None:
        if not SPARK.fullmatch(where):
            raise ConfigError(f"--spark {where}: shared, sc://host:port or local[n]")
        self._fleet = fleet
        self._where = where
        self._say = say
        self._link: SparkLink | None = None
        self._started = False

    def get(self) -> Any:
        """The session; a broken one is made anew."""
        if self._link is None:
            url = self._url()
            link = SparkLink(
                where=lambda: url,
                clock=self._fleet.clock,
                app="fleet history",
                linger=LINGER_SHARED,
                settings=_SETTINGS,
            )
            link.connect(timeout=_START_SECONDS, given_up=lambda: False)
            self._link = link
        return self._link.session

    def close(self) -> None:
        """Let go; the server too, where it was started for this and nobody keeps it alive."""
        if self._link is not None:
            self._link.interrupt_all()
            self._link.close()
        supervisor = Roster(self._fleet.home, clock=self._fleet.clock).supervisor()
        if self._started and (supervisor is None or not alive(supervisor)):
            spark_server.stop(self._fleet.home)

    def _url(self) -> str:
        home = self._fleet.home
        if self._where != "shared":
            return self._where
        if not spark_server.ready(home):
            self._started = not spark_server.alive(home)
            self._say("Spark starts")
            spark_server.start(home, environ=os.environ)
        return spark_server.wait_ready(home, timeout=_START_SECONDS, clock=self._fleet.clock)
