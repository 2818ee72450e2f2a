"""Connects the parts of `fleet history`: the cluster, Spark, the tables and their writer."""

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
"""Longest silence of a remote Connect server."""
_TASK_SECONDS: Final = 60.0
"""Longest wait of the first task for an executor, which may have to start."""


def open_writer(fleet: "Fleet") -> Writer:
    """Opens the tables for writing: `history.path`, or `history` in the state directory."""
    return Writer(
        TablePlace(fleet.history_path),
        cluster=fleet.spec.cluster.name,
        clock=fleet.clock,
        retention=fleet.spec.history.retention,
    )


class ClusterLog:
    """Reads the offsets topic through Spark and topics through the observer."""

    def __init__(self, fleet: "Fleet", spark: "LazySpark") -> None:
        self._fleet = fleet
        self._spark = spark
        self._names: dict[str, str] = {}

    def bounds(self) -> Mapping[int, LogBounds]:
        """Returns the bounds of the offsets topic; {} without one. Raises Unreadable."""
        return self._fleet.offsets_bounds()

    def digest(
        self,
        ranges: Sequence[OffsetRange],
        *,
        led: Mapping[int, int],
        since: Mapping[int, int],
        **where: str,
    ) -> "pa.Table":
        """Writes the commits of the ranges by Spark tasks; returns RETURNED of each task.

        led: known leader epochs; others are told in `events`. since: offsets from which missing
        ones are told. where: place and cluster of a Task.
        """
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
        """Limits a block by `history.batch_timeout`; raises Unreachable at its end."""
        return self._spark.bounded(offsets)

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """Returns topic names by id; reads again only for new ids."""
        if not set(ids) <= self._names.keys():
            self._names |= self._fleet.topic_ids()
        return {i: self._names[i] for i in ids if i in self._names}

    def ends(self, tps: Collection[TopicPartition]) -> Logs:
        """Reads the log ends of these partitions."""
        return self._fleet.logs(tps)


@contextmanager
def open_recorder(
    fleet: "Fleet", *, spark: str | None, polled: bool, say: Say
) -> Iterator[Recorder | Poller]:
    """Opens the history's writer; `spark` None: from fleet.yaml.

    If the offsets topic is not readable, or `polled`, it records the AdminClient's view.
    """
    with ExitStack() as stack:
        writer = open_writer(fleet)
        if not polled:
            try:
                fleet.offsets_bounds()
            except Unreadable as error:
                say(f"{error}; Fleet polls the groups instead, without generations and commits")
                polled = True
        if polled:
            selected = fleet.spec.history.groups.takes
            yield Poller(writer, look=fleet.snapshot, wanted=selected)
            return
        session = LazySpark(fleet, spark or fleet.spec.history.spark, say)
        stack.callback(session.close)
        yield Recorder(writer, ClusterLog(fleet, session), say=say, session=fleet.sessions.of)


class LazySpark:
    """Starts Spark with the first batch, so that a run without new records starts none.

    A remote server (`sc://`) runs one task before the first batch, since it also answers without
    an executor.
    """

    def __init__(self, fleet: "Fleet", where: str, say: Say) -> None:
        _check_spark(where)
        self._fleet = fleet
        self._where = where
        self._elsewhere = where.startswith("sc://")
        self._say = say
        self._link: SparkLink | None = None
        self._started = False
        self.options: dict[str, str] = {}
        """Options of the data source: the number of tasks, if it differs from the local cores."""

    def get(self) -> Any:
        """Returns the session; replaces a broken one. Raises Unreachable."""
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
        """Interrupts Spark inside the block after `history.batch_timeout`."""
        self.get()
        assert self._link is not None
        limit = self._fleet.spec.history.batch_timeout
        sentence = (
            f"Spark at {safe(self._where)} did not write a batch of {offsets:,} offsets within "
            f"{limit:g} s (history.batch_timeout), so Fleet interrupted it. The tables have no row "
            "of it, and the next run starts there again"
        )
        try:
            with self._link.bounded(limit, sentence):
                yield
        except FleetError:
            raise
        except Exception as error:
            if (reason := failure_in(error)) is not None:
                raise Unreachable(reason[1]) from error
            if not self._elsewhere or is_spark_failure(error):
                raise
            raise FleetError(
                f"Spark at {safe(self._where)} failed on a batch of {offsets:,} offsets: "
                f"{first_line(error)}; the page how-to/remote-spark lists what executors need"
            ) from error

    def close(self) -> None:
        """Closes the session, and stops the server if it was started here without a supervisor."""
        if self._link is not None:
            self._link.interrupt_all()
            self._link.close()
        supervisor = ProcessTable(self._fleet.home, clock=self._fleet.clock).supervisor()
        if self._started and (supervisor is None or not alive(supervisor)):
            spark_server.stop(self._fleet.home)

    def _cores(self, link: SparkLink) -> int:
        sentence = (
            f"Spark at {safe(self._where)} scheduled no task within {_TASK_SECONDS:g} s: no free "
            "executor; check the page of its master, or change history.spark"
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
            self._say("starting Spark")
            spark_server.start(home, environ=os.environ)
        return spark_server.wait_ready(home, timeout=_START_SECONDS, clock=self._fleet.clock)


def _check_spark(where: str) -> None:
    """Raises ConfigError for a value that fleet.yaml would refuse too."""
    if not re.match(SPARK, where):
        raise ConfigError(f"--spark {safe(where)}: write shared, sc://host:port or local[n]")
    try:
        without_token(where)
    except ValueError as error:
        raise ConfigError(f"--spark {safe(where)} {error}") from None
