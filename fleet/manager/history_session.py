"""What `fleet history` wires together: the cluster, Spark, the tables and their one writer."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from fleet.act import spark_server
from fleet.act.local.process_table import ProcessTable
from fleet.config.acls import OFFSETS
from fleet.config.spec import SPARK, without_token
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.history.digest import digest_ranges
from fleet.history.pipeline import Recorder
from fleet.history.polled import Poller
from fleet.history.tables import TablePlace, Writer
from fleet.kafka_source.failures import failure_in
from fleet.kafka_source.login import references
from fleet.kafka_source.pieces import LogBounds, OffsetRange
from fleet.kafka_source.source import cores_of
from fleet.lag.snapshot import Logs
from fleet.log.records import Unreadable
from fleet.model import TopicPartition
from fleet.system.processes import alive
from fleet.worker.batch.spark_link import (
    LINGER,
    LINGER_SHARED,
    SparkLink,
    first_line,
    in_clear,
    is_spark_failure,
    safe,
)
from fleet.worker.pod_environment import SPARK_TOKEN

if TYPE_CHECKING:
    import pyarrow as pa

    from fleet.manager.cycle import Fleet

Say = Callable[[str], None]
_START_SECONDS: Final = 90.0
_REMOTE_SECONDS: Final = 30.0
"""How long a Connect server elsewhere may be silent."""
_TASK_SECONDS: Final = 60.0
"""How long its cluster may take to give the first task a place: executors may have to start."""


def writer_of(fleet: "Fleet") -> Writer:
    """Opens the tables to write them: in `history.path`, or `history` in the home."""
    return Writer(
        TablePlace(fleet.history_path),
        cluster=fleet.spec.cluster.name,
        clock=fleet.clock,
        retention=fleet.spec.history.retention,
    )


class ClusterLog:
    """The offsets topic through Spark, the topics through the observer (`OffsetsLog`)."""

    def __init__(self, fleet: "Fleet", spark: "LazySpark") -> None:
        self._fleet = fleet
        self._spark = spark
        self._names: dict[str, str] = {}

    def bounds(self) -> Mapping[int, LogBounds]:
        """Raises Unreadable."""
        return self._fleet.offsets_bounds()

    def digest(
        self,
        ranges: Sequence[OffsetRange],
        *,
        led: Mapping[int, int],
        since: Mapping[int, int],
        **where: str,
    ) -> "pa.Table":
        """By tasks of Spark; rows where other leader epochs begin are among `events`."""
        fleet, history = self._fleet, self._fleet.spec.history
        session = self._spark.get()
        return digest_ranges(
            session,
            ranges,
            options={
                **self._spark.options,
                "login": json.dumps(references(fleet.spec.cluster, fleet.bootstrap)),
                "topic": OFFSETS,
                "leaderEpochs": json.dumps({str(p): epoch for p, epoch in led.items()}),
                "gapsFrom": json.dumps({str(p): offset for p, offset in since.items()}),
            },
            digest={
                "interval": int(history.commit_interval * 1000),
                "allow": list(history.groups.allow),
                "deny": list(history.groups.deny),
            },
            **where,
        )

    def bounded(self, offsets: int) -> AbstractContextManager[None]:
        """By `history.batch_timeout`."""
        return self._spark.bounded(offsets)

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """Asked again only for ids that are new."""
        if not set(ids) <= self._names.keys():
            self._names |= self._fleet.topic_ids()
        return {i: self._names[i] for i in ids if i in self._names}

    def ends(self, tps: Collection[TopicPartition]) -> Logs:
        """By one look."""
        return self._fleet.logs(tps)


@contextmanager
def recording(
    fleet: "Fleet", *, spark: str | None, polled: bool, say: Say
) -> Iterator[Recorder | Poller]:
    """The history's writer, for one run or a tail; `spark` None: as fleet.yaml says.

    Where the offsets topic may not be read, or `polled`, the AdminClient's view is recorded.
    """
    with ExitStack() as stack:
        writer = writer_of(fleet)
        if not polled:
            try:
                fleet.offsets_bounds()
            except Unreadable as error:
                say(f"{error}: groups are polled instead, generations and commits are not known")
                polled = True
        if polled:
            selected = fleet.spec.history.groups.takes
            yield Poller(writer, look=fleet.snapshot, wanted=selected)
            return
        session = LazySpark(fleet, spark or fleet.spec.history.spark, say)
        stack.callback(session.close)
        yield Recorder(writer, ClusterLog(fleet, session), say=say, session=fleet.sessions.of)


class LazySpark:
    """Spark from the first batch on: where nothing is new, none is started.

    Elsewhere (`sc://`) it is somebody else's server and cluster: asked for a task before the
    first batch, since a server answers also where its cluster has no executor.
    """

    def __init__(self, fleet: "Fleet", where: str, say: Say) -> None:
        _judge(where)
        self._fleet = fleet
        self._where = where
        self._elsewhere = where.startswith("sc://")
        self._say = say
        self._link: SparkLink | None = None
        self._started = False
        self.options: dict[str, str] = {}
        """Of the data source: on how many tasks a batch is dealt, where this machine's cores do
        not tell."""

    def get(self) -> Any:
        """The session; a broken one is made anew. Raises Unreachable."""
        if self._link is None:
            url = self._url()
            link = SparkLink(
                where=lambda: url,
                clock=self._fleet.clock,
                app="fleet history",
                linger=LINGER if self._elsewhere else LINGER_SHARED,
                token=self._token,
                elsewhere=self._elsewhere,
            )
            timeout = _REMOTE_SECONDS if self._elsewhere else _START_SECONDS
            link.connect(timeout=timeout, given_up=lambda: False)
            self._link = link
            if self._elsewhere:
                self.options = {"tasks": str(self._cores(link))}
        return self._link.session

    @contextmanager
    def bounded(self, offsets: int) -> Iterator[None]:
        """Interrupts what Spark does in it after `history.batch_timeout`."""
        self.get()
        assert self._link is not None
        limit = self._fleet.spec.history.batch_timeout
        sentence = (
            f"Spark at {safe(self._where)} did not write a batch of {offsets:,} offsets within "
            f"{limit:g} s (history.batch_timeout) and was interrupted; nothing of it became "
            "visible, and the next run begins there again"
        )
        try:
            with self._link.bounded(limit, sentence):
                yield
        except FleetError:
            raise
        except Exception as error:
            if (told := failure_in(error)) is not None:
                raise Unreachable(told[1]) from error
            if not self._elsewhere or is_spark_failure(error):
                raise
            raise FleetError(
                f"Spark at {safe(self._where)} failed on a batch of {offsets:,} offsets: "
                f"{first_line(error)}; what its executors need: documentation: how-to/remote-spark"
            ) from error

    def close(self) -> None:
        """Let go; the server too, where it was started for this and nobody keeps it alive."""
        if self._link is not None:
            self._link.interrupt_all()
            self._link.close()
        supervisor = ProcessTable(self._fleet.home, clock=self._fleet.clock).supervisor()
        if self._started and (supervisor is None or not alive(supervisor)):
            spark_server.stop(self._fleet.home)

    def _cores(self, link: SparkLink) -> int:
        sentence = (
            f"Spark at {safe(self._where)} answers, but gave a task no place within "
            f"{_TASK_SECONDS:g} s: its cluster has no executor, or none that is free; look at the "
            "master's page, or name another history.spark"
        )
        with link.bounded(_TASK_SECONDS, sentence):
            return cores_of(link.session)

    def _token(self) -> str | None:
        if self._where == "shared":
            return spark_server.token(self._fleet.home)
        return os.environ.get(SPARK_TOKEN) if in_clear(self._where) else None

    def _url(self) -> str:
        home = self._fleet.home
        if self._where != "shared":
            return self._where
        if not spark_server.ready(home):
            self._started = not spark_server.alive(home)
            self._say("Spark starts")
            spark_server.start(home, environ=os.environ)
        return spark_server.wait_ready(home, timeout=_START_SECONDS, clock=self._fleet.clock)


def _judge(where: str) -> None:
    """ConfigError for what is no place of Spark, as fleet.yaml would refuse it."""
    if not re.match(SPARK, where):
        raise ConfigError(f"--spark {safe(where)}: shared, sc://host:port or local[n]")
    try:
        without_token(where)
    except ValueError as error:
        raise ConfigError(f"--spark {safe(where)} {error}") from None
