"""The worker's Spark session: created, warmed, interrupted, ended, recreated.

Problem: Spark outlives its client [3], the shared server may be killed during a batch, and
PySpark's own retries wait ten minutes before they fail. Choice: the worker chooses the session id,
so that a successor can interrupt and release the session. Retries end after about two seconds, and
the worker itself waits for the server. Every RPC has a deadline if PySpark allows one. Failures of
Spark are recognized by class and status. Cost: some of PySpark's internals are used, each behind a
test.
"""

import contextlib
import importlib
import importlib.metadata
import os
import sys
import threading
import traceback
import types
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from fleet.clock import Clock
from fleet.collector import gc_disabled
from fleet.errors import Unreachable
from fleet.kafka_source.columns import spark_schema
from fleet.kafka_source.failures import text_of
from fleet.system import class_sharing, spark_python
from fleet.system.processes import CONNECT

_POLL: Final = 0.2
_CURE_SECONDS: Final = 5.0
_AGAIN: Final = 1.0
"""Seconds from one interrupt to the next, while the interrupted work goes on."""
LINGER: Final = 4.5
"""Seconds until an interrupted task's Python function has ended. Spark checks every 2 s whether a
task was interrupted, and kills its Python worker after spark.python.task.killTimeout (2 s)."""
LINGER_SHARED: Final = 2.5
"""Seconds for the shared server, whose killTimeout is 0.2 s."""
_LOOPBACK: Final = "127.0.0.1"
_ANSWER: Final = "SELECT * FROM VALUES (1)"
"""A query that a server answers by itself: `SELECT 1` is a task and waits without executors."""
_CONNECT_SETTINGS: Final = {
    # Larger data (1 MiB by default) is uploaded by its hash and stays on the server until the
    # session ends, as long as its worker. A batch has 64 MiB at most, a call 128.
    "spark.sql.session.localRelationCacheThreshold": str(100 << 20),
    # The plans with the last sixteen batches in them would stay as well.
    "spark.connect.session.planCache.enabled": "false",
}
_USER: Final = "fleet"
KEEP_ALIVE: Final = 600.0
"""Seconds between two signs of life. A server closes a session without requests after an hour
(Fleet's after two), while a standby waits for days and a batch may compute long without Spark."""
_HERE: Final = "is the supervisor running? see `fleet doctor`"
_ELSEWHERE: Final = "does a Spark Connect server run there, and may this machine reach it?"
_GONE: Final = (
    "INVALID_HANDLE",
    "SESSION_CLOSED",
    "SESSION_NOT_FOUND",
    "OPERATION_CANCELED",
    "RESPONSE_ALREADY_RECEIVED",
)
_NO_ANSWER: Final = frozenset(
    {"UNAVAILABLE", "UNAUTHENTICATED", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}
)
"""gRPC's status if no Spark answered, or not in time."""
_GONE_TEXT: Final = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "SparkContext has been shutdown",
    "NO_ACTIVE_SESSION",
)


class SparkLink:
    """One Spark session, used by the batch thread; `interrupt` may be called from any thread."""

    def __init__(
        self,
        *,
        where: Callable[[], str | None],
        clock: Clock,
        app: str,
        linger: float = LINGER,
        token: Callable[[], str | None] = lambda: None,
        elsewhere: bool = False,
        ui: bool = False,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._ui = ui
        self._keep_alive = keep_alive
        self._keeper: threading.Thread | None = None
        self._closed = threading.Event()
        self.elsewhere = elsewhere
        """Whether Spark is others' business: nothing of this home keeps it alive."""
        self._token = token
        self._linger = linger
        self._where = where
        self._clock = clock
        self._app = app
        self._lock = threading.Lock()
        self._session: Any = None
        self._url: str | None = None
        self.session_id: str | None = None
        """Spark Connect's session id; None for local[n]."""
        self.ui_url: str | None = None
        """Of local[n], where it has its web UI."""

    @property
    def session(self) -> Any:
        """Returns the SparkSession; connect first."""
        assert self._session is not None, "connect() comes first"
        return self._session

    def connect(self, *, timeout: float, given_up: Callable[[], bool]) -> Any:
        """Creates a session, waiting for the server at most `timeout` seconds; returns the
        SparkSession.

        Raises Unreachable if it does not answer in time or `given_up` returns True.
        """
        self._drop()
        deadline = self._clock.monotonic() + timeout
        last = "it was never started"
        while True:
            where = self._where()
            if where is not None:
                try:
                    return self._open(where)
                except Exception as error:
                    if not is_spark_failure(error) and not isinstance(error, OSError):
                        raise
                    last = first_line(error)
                    self._drop()
            if given_up() or self._clock.monotonic() >= deadline:
                raise Unreachable(
                    f"Spark at {safe(where) or 'the shared server'} does not answer within "
                    f"{timeout:g} s ({last}); {_ELSEWHERE if self.elsewhere else _HERE}"
                )
            self._clock.sleep(_POLL)

    def interrupt(self, tag: str) -> None:
        """Interrupts what runs under `tag`; the interrupted batch gets the errors."""
        session = self._session
        if session is not None:
            with contextlib.suppress(Exception):
                session.interruptTag(tag)

    @contextlib.contextmanager
    def bounded(self, seconds: float, sentence: str) -> Iterator[None]:
        """Interrupts this session's work after so many seconds; Unreachable with the sentence."""
        late, over = threading.Event(), threading.Event()

        def end() -> None:
            if over.wait(seconds):
                return
            late.set()
            # Once is not enough: an interrupt does not end what a busy server has not begun yet.
            while True:
                self.interrupt_all()
                if over.wait(_AGAIN):
                    return

        watch = threading.Thread(target=end, name="bound", daemon=True)
        watch.start()
        try:
            yield
        except Exception as error:
            if late.is_set():
                raise Unreachable(sentence) from error
            raise
        finally:
            over.set()
            watch.join(_CURE_SECONDS)  # the next work must not be interrupted

    def answer(self, function: Callable[[Any], str | None], seconds: float) -> str | None:
        """Returns the function's result for the SparkSession; Unreachable if it takes longer."""
        with self.bounded(seconds, f"Spark did not answer within {seconds:g} s"):
            return function(self.session)

    def runs_tasks(self, seconds: float) -> bool:
        """Whether a task starts within so many seconds: a free executor exists."""
        try:
            with self.bounded(seconds, "no task ran"):
                self.session.range(1).collect()
        except Unreachable:
            return False
        return True

    def interrupt_all(self) -> None:
        """Interrupts whatever this session runs; without running work nothing happens."""
        session = self._session
        if session is not None:
            with contextlib.suppress(Exception):
                session.interruptAll()

    def end_session(self, external_session: str) -> str | None:
        """Interrupts and releases another worker's session, within 5 s; returns why it failed, or
        None [3].

        A Python function that runs inside Spark then goes on for a while. If anything was
        interrupted, `linger` seconds are waited until it has ended too.
        """
        if self._url is None or not self._url.startswith("sc://"):
            return None
        from pyspark.sql.connect.client import SparkConnectClient  # noqa: PLC0415
        from pyspark.sql.connect.client.core import RpcDeadlines  # noqa: PLC0415

        deadlines = RpcDeadlines(interrupt=_CURE_SECONDS, release_session=_CURE_SECONDS)
        client = None
        try:
            client = SparkConnectClient(
                self._channel(_with_session(self._url, external_session)), rpc_deadlines=deadlines
            )
            client.set_retry_policies([_bounded_retries()])
            if client.interrupt_all():
                self._clock.sleep(self._linger)
            # Seen: released right behind the interrupt, the session is refused as one whose
            # operation has not ended yet (an illegal state transition).
            self._released(client)
        except Exception as error:  # noqa: BLE001 - PySpark raises what gRPC gave it
            return first_line(error)
        finally:
            if client is not None:
                with contextlib.suppress(Exception):
                    client.close()
        return None

    def _released(self, client: Any) -> None:
        for _ in range(3):
            with contextlib.suppress(Exception):
                client.release_session()
                return
            self._clock.sleep(_POLL)
        client.release_session()

    def close(self) -> None:
        """Releases the session; a missing server is no error."""
        self._closed.set()
        self._drop()

    def _open(self, where: str) -> Any:
        if where.startswith("sc://"):
            session = self._open_connect(where)
        else:
            session = self._open_local(where)
        self._session, self._url = session, where
        session.sql(_ANSWER).collect()
        return session

    def _open_connect(self, where: str) -> Any:
        SparkSession = load_client()  # noqa: N806
        # As the builder does: pyspark.sql.functions then makes Connect's columns, not the JVM's.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        session_id = str(uuid.uuid4())
        session = SparkSession(connection=self._channel(_with_session(where, session_id)))
        session.client.set_retry_policies([_bounded_retries()])
        for name, value in _CONNECT_SETTINGS.items():
            session.conf.set(name, value)
        with self._lock:
            # What SparkSession.builder does after creating one; a user's getActiveSession() in
            # the batch thread then finds it, also after a reconnect.
            SparkSession._default_session = session  # noqa: SLF001
            SparkSession._active_session.session = session  # noqa: SLF001
        self.session_id = session_id
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="keep-alive", daemon=True)
            self._keeper.start()
        return session

    def _keep(self) -> None:
        """Sends the server something small now and then; the next batch notices a lost session."""
        while not self._closed.wait(self._keep_alive):
            session = self._session
            if session is not None:
                with contextlib.suppress(Exception):
                    session.conf.get("spark.sql.session.timeZone")

    def _channel(self, url: str) -> Any:
        """Returns how to call a server: PySpark's own way, or Fleet's if it knows the token."""
        token = self._token()
        if token is None:
            return url
        return _bearer_channel(url, token)

    def _open_local(self, master: str) -> Any:
        before_pyspark()
        from pyspark.sql import SparkSession  # noqa: PLC0415

        forget_connect()
        builder = SparkSession.builder.master(master).appName(self._app)
        builder = builder.config("spark.ui.enabled", "true" if self._ui else "false")
        if self._ui:
            os.environ["SPARK_LOCAL_IP"] = _LOOPBACK  # without it the UI listens on all addresses
            builder = builder.config("spark.ui.port", "0").config("spark.driver.host", _LOOPBACK)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        # Its driver listens to the network; Spark makes the secret.
        builder = builder.config("spark.authenticate", "true")
        builder = builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        self.session_id = None
        with own_jvm():
            session = builder.getOrCreate()
        self.ui_url = session.sparkContext.uiWebUrl
        return session

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.stop()


def _bearer_channel(url: str, bearer: str) -> Any:
    """Returns a channel without TLS whose calls carry a token.

    PySpark 4.3's client uses TLS as soon as it has a token, unless the server's name is
    `localhost`, and a Connect server cannot use TLS itself. So each call sends the header that the
    server compares. Cost: a listener on the network between the two can read the token.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    class BearerChannel(DefaultChannelBuilder):
        """PySpark's documented extension point."""

        @property
        def token(self) -> str | None:
            return bearer

        def toChannel(self) -> Any:  # noqa: N802 - PySpark's name
            return self._insecure_channel(self.endpoint)  # whatever the environment says of tokens

        def metadata(self) -> Any:
            return [*super().metadata(), ("authorization", f"Bearer {bearer}")]

    return BearerChannel(url)


def load_client() -> Any:
    """Imports PySpark's Connect client without pandas; returns its SparkSession."""
    before_pyspark()
    with gc_disabled(), pandas_on_demand():
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415
    return SparkSession


def before_pyspark() -> None:
    """Sets what must be set before PySpark is loaded.

    gRPC starts its threads again in a forked child. Of `Popen(preexec_fn=…)`, by which PySpark
    starts a JVM, 10 of 400 were aborted (SIGABRT) while a channel was in use, none without it.
    """
    warnings.filterwarnings("ignore", module=r"pyspark(\.|$)")  # of pandas 3, retries, …
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def forget_connect() -> None:
    """Prepares a JVM of this process: PySpark would else look for a server in any case."""
    for name in CONNECT:
        os.environ.pop(name, None)


def own_jvm() -> contextlib.AbstractContextManager[None]:
    """Makes a JVM that PySpark starts in the block map the server's classes and use this Python."""
    import pyspark  # noqa: PLC0415

    spark_python.choose()
    return class_sharing.of_spark_server(Path(pyspark.__file__).parent / "jars")


def frame_of(spark: Any, table: pa.Table, *, one_task: bool = False) -> Any:
    """Returns an Arrow table with the columns of Spark's Kafka source as a DataFrame.

    one_task: as one partition, whose rows need no exchange to be grouped or joined.
    """
    frame = spark.createDataFrame(table, spark_schema())
    return frame.coalesce(1) if one_task else frame


def is_spark_failure(error: BaseException | None) -> bool:
    """Whether Spark itself failed (connection, session, JVM), not the user's request [9].

    The first error of PySpark's in the chain decides. One of gRPC's own counts if PySpark's client
    made the call. A client of the user's (a database, a queue) may use gRPC as well, and its
    failures are the entrypoint's.
    """
    seen = 0
    while error is not None and seen < 10:
        module = type(error).__module__.partition(".")[0]
        if module == "pyspark":
            return _names_spark_failure(error)
        if module == "grpc" and _called_by_pyspark(error):
            return True
        if module == "py4j" and type(error).__name__ in {"Py4JNetworkError", "Py4JError"}:
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _names_spark_failure(error: BaseException) -> bool:
    if type(error).__name__ == "PythonException":
        return False  # the user's function in a task: its text may quote anything
    condition = _condition(error)
    if any(word in condition for word in _GONE):
        return True
    status = getattr(getattr(error, "_grpc_status_code", None), "name", "")
    if status in _NO_ANSWER:
        return True
    text = str(error)
    # If the server sent only a status, PySpark makes no other class of it.
    plain = type(error).__name__ == "SparkConnectGrpcException" and not condition
    return (plain and "StatusCode.UNAVAILABLE" in text) or any(w in text for w in _GONE_TEXT)


def _called_by_pyspark(error: BaseException) -> bool:
    """Whether PySpark made the refused call: the innermost frame that is not gRPC's."""
    modules = [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    callers = [name for name in modules if name.partition(".")[0] != "grpc"]
    return bool(callers) and callers[-1].partition(".")[0] == "pyspark"


def _condition(error: BaseException) -> str:
    with contextlib.suppress(Exception):
        return str(error.getCondition() or "")  # type: ignore[attr-defined]  # PySparkException's
    return ""


def _bounded_retries() -> Any:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    return DefaultPolicy(
        max_retries=4, initial_backoff=50, backoff_multiplier=3.0, max_backoff=1000, jitter=50
    )


def in_clear(url: str) -> bool:
    """Whether an address asks to send its token without TLS (`use_ssl=false`)."""
    given = url.partition("/;")[2].lower().split(";")
    return url.startswith("sc://") and "use_ssl=false" in given


def _with_session(url: str, session_id: str) -> str:
    """Returns a Connect address with the worker's user and session."""
    base, _, parameters = url.partition("/;")
    kept = [p for p in parameters.split(";") if p and not p.startswith("session_id=")]
    if not any(p.startswith("user_id=") for p in kept):
        kept.append(f"user_id={_USER}")
    return f"{base.rstrip('/')}/;" + ";".join([*kept, f"session_id={session_id}"])


def safe(url: str | None) -> str | None:
    """Returns the address without parameters, which may hold a token."""
    return None if url is None else url.partition("/;")[0]


def first_line(error: BaseException, *, most: int | None = 300) -> str:
    """Returns the most informative line of an error: gRPC hides it behind its object's kind."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    detail = next((line for line in lines if line.startswith("details =")), None)
    return (detail or (lines[0] if lines else type(error).__name__))[:most]


# PySpark's Connect client imports pandas, 33 MB and a quarter second of CPU. It needs only its
# version and a check for pandas DataFrames, which most jobs never pass. So while the client is
# imported, a stand-in module replaces pandas. It knows the version, and that nothing is a DataFrame
# while pandas is not loaded. Any other attribute loads the real one. Cost: names that PySpark takes
# from pandas are listed here.

_PANDAS: Final = "pandas"
_TYPES: Final = "pandas.api.types"
_PREDICATES: Final = ("is_datetime64_dtype", "is_timedelta64_dtype")
"""What PySpark takes by name from pandas.api.types, to call it with columns of a DataFrame."""


@contextlib.contextmanager
def pandas_on_demand() -> Iterator[None]:
    """Makes imports of pandas in this block get the stand-in; import nothing else in it."""
    version = _version()
    if version is None or any(name.partition(".")[0] == _PANDAS for name in sys.modules):
        yield
        return
    standing = {
        _PANDAS: _stand_in(_PANDAS, __version__=version, DataFrame=_DataFrame),
        _TYPES: _stand_in(_TYPES, **{name: _predicate(name) for name in _PREDICATES}),
    }
    sys.modules.update(standing)
    try:
        yield
    finally:
        _withdraw()


def _version() -> str | None:
    try:
        return importlib.metadata.version(_PANDAS)
    except importlib.metadata.PackageNotFoundError:
        return None


class _StandIn(str):
    """Marks a stand-in among modules, which need the plain type to be pickled by name."""

    __slots__ = ()


def _stand_in(name: str, **known: Any) -> types.ModuleType:
    made = types.ModuleType(name, _StandIn("Loads the real module when it is used."))

    def attribute(wanted: str) -> Any:
        if name == _TYPES and wanted == "__path__":  # `from pandas.api.types import …` looks at it
            raise AttributeError(wanted)
        return getattr(_real(name), wanted)

    made.__dict__.update(known, __getattr__=attribute)
    return made


def _real(name: str) -> types.ModuleType:
    _withdraw()
    return importlib.import_module(name)


def _withdraw() -> None:
    for name in (_PANDAS, _TYPES):
        module = sys.modules.get(name)
        if module is not None and isinstance(module.__doc__, _StandIn):
            del sys.modules[name]


class _Frames(type):
    def __instancecheck__(cls, instance: object) -> bool:
        """Checks against the real class, once it is loaded."""
        real = getattr(sys.modules.get(_PANDAS), "DataFrame", cls)
        return real is not cls and isinstance(instance, real)


class _DataFrame(metaclass=_Frames):
    """Stands for pandas.DataFrame in a check of types and in annotations."""


def _predicate(name: str) -> Any:
    def predicate(column: Any) -> bool:
        return bool(getattr(_real(_TYPES), name)(column))

    return predicate
