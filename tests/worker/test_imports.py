"""What a standby has loaded, and what it has not: memory and CPU of every start."""

import gc

from fleet.collector import gc_disabled
from tests.support.fresh_interpreter import ran

NOT_BEFORE_IT_IS_USED = {
    "dagster",
    "fleet.manager",
    "kafka",
    "kubernetes",
    "pandas",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich",
    "sqlalchemy",
    "yaml",
}
STANDBY = """
import sys
import fleet.worker.__main__
import fleet.worker.slot.process
from fleet.act.local import local_runtime
from fleet.kafka_source.columns import no_rows
from fleet.kubernetes import kind
from fleet.worker.batch.spark_link import pandas_on_demand
with pandas_on_demand():
    import pyspark.sql.connect.session as connect
import pyspark.sql.connect.client
assert no_rows().num_rows == 0
assert {column.num_chunks for column in no_rows().columns} == {1}  # PySpark's own JVM takes no 0
assert not isinstance(no_rows(), connect.pd.DataFrame)
"""


def test_what_a_standby_has_not_loaded() -> None:
    """With a Connect session, on this machine and in a pod."""
    found = ran(f"{STANDBY}\nprint(*sys.modules)")
    assert "pyspark.sql.connect.session" in found
    assert not NOT_BEFORE_IT_IS_USED & set(found)


def test_a_first_batch_loads_no_pandas() -> None:
    """Fault: whoever takes over spends 0.2 s of CPU on it between its first records and its first
    batch: pyarrow asks pandas about every list that it is given. With headers, keys, nulls, and of
    records that are read by ranges; the job's journal of the demo too.
    """
    found = ran(
        f"""{STANDBY}
import numpy as np
from fleet.kafka_source.columns import table_of_pieces, to_stderr
from fleet.kafka_source.pieces import Piece
from fleet.kafka_source.record_fields import Fields
from fleet.model import TopicPartition
from fleet.demo.coverage import entries_of
from fleet.clock import ManualClock
from fleet.worker.batch.batches import InlineReading
from fleet.model.batch_context import BatchContext
from tests.support.memory_kafka import Message

buffer = InlineReading(limit=10, max_wait=0.0, max_seconds=10.0, clock=ManualClock())
place = TopicPartition("t", 0)
buffer.add_partition(place, topic_id="T", start=0, replay_to=None)
odd = [("trace", b"x"), ("empty", None)]
buffer.add(place, [
    Message(place, 0, value=b"one", headers=odd),
    Message(place, 1, value=None, key=b"k"),
    Message(place, 2, value=b"seq"),
])
batch = buffer.close(1.0)
table = batch.table()
assert table.num_rows == 3
numbers = table.append_column("seq", table["offset"])
context = BatchContext(
    cluster="c", group="g", slot=0, worker="w", revision="r", attempt=1, warm=False,
    ranges=batch.ranges,
)
assert len(entries_of(context, numbers, 0.0)) == 1
at = np.arange(2)
size = np.array([1, -1])
read = Fields(at, at, at == 0, at, b"xyz" + bytes(80), at, size, at, size, [[(b"trace", None)], ()])
assert table_of_pieces([Piece("t", 0, read, at)], to_stderr()).num_rows == 2
print(*sys.modules)
"""
    )
    assert "pyarrow.compute" in found, "it did read"
    assert "pandas" not in found


def test_pandas_is_the_real_one_for_who_uses_it() -> None:
    """PySpark then knows its DataFrames, and its types of columns."""
    assert ran(
        f"""{STANDBY}
import pandas
frame = pandas.DataFrame({{"at": pandas.to_datetime(["2024-01-01"]), "n": [1]}})
assert pandas.__file__ and connect.pd.Series is pandas.Series
print(isinstance(frame, connect.pd.DataFrame), isinstance(1, connect.pd.DataFrame))
print(*map(connect.is_datetime64_dtype, frame.dtypes))
"""
    ) == ["True", "False", "True", "False"]


def test_what_the_stand_in_does_not_know_loads_pandas() -> None:
    """Also while PySpark is imported, and in a form that pickles by name."""
    assert ran(
        """
import pickle, sys
from pyspark import cloudpickle
from fleet.worker.batch.spark_link import pandas_on_demand
with pandas_on_demand():
    import pandas as held
    from pandas.api.types import is_datetime64_dtype as predicate
    print(sys.modules["pandas"] is held)
    series = held.Series
    import pandas.core.frame
    print(sys.modules["pandas"] is held)
import pandas
print(series is pandas.Series, predicate("M8[ns]"), held.__version__ == pandas.__version__)
print(pickle.loads(cloudpickle.dumps(held)) is pandas)
with pandas_on_demand():
    import pandas as again
print(again is pandas)
"""
    ) == ["True", "False", "True", "True", "True", "True", "True"]


def test_the_collector_rests_while_modules_are_loaded() -> None:
    """And no longer, whatever becomes of the import."""
    assert gc.isenabled()
    try:
        with gc_disabled():
            assert not gc.isenabled()
            raise ImportError
    except ImportError:
        pass
    assert gc.isenabled()


def test_a_fork_is_not_grpcs_business() -> None:
    """Fault: of the children that a worker starts while it talks to Spark one in forty was aborted,
    PySpark's own JVM among them. Who wants gRPC's way sets it.
    """
    told = (
        "import os, sys\n"
        "from fleet.worker.batch.spark_link import load_client\n"
        "assert 'grpc' not in sys.modules\n"
        "load_client()\n"
        "print(os.environ['GRPC_ENABLE_FORK_SUPPORT'], 'grpc' in sys.modules)"
    )
    assert ran(f"import os\nos.environ.pop('GRPC_ENABLE_FORK_SUPPORT', None)\n{told}") == [
        "0",
        "True",
    ]
    assert ran(f"import os\nos.environ['GRPC_ENABLE_FORK_SUPPORT'] = '1'\n{told}")[0] == "1"
