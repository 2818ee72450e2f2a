"""What an exporter does not load, and that what it frees goes back: it runs for months in a pod."""

import ctypes
import sys
from pathlib import Path

import pytest

from fleet.system import memory_files
from tests.support.fresh_interpreter import ran

NOT_WHERE_ONE_ONLY_LOOKS = {
    "confluent_kafka": "a request to a coordinator may end its process (librdkafka #4605)",
    "fleet.act.change": "nothing is changed",
    "fleet.broker": "the cluster is another",
    "fleet.act.kafka": "no member is removed",
    "numpy.ma": "1 MB for a question that sorting answers",
    "pandas": "30 MB",
    "pyarrow": "20 MB",
    "pyspark": "20 MB",
}


def test_what_an_exporter_has_not_loaded(tmp_path: Path) -> None:
    """Opened, listening and reading; nobody answers it."""
    (tmp_path / "fleet.yaml").write_text(
        "cluster: {name: main, bootstrap_servers: 127.0.0.1:1}\nfleets: []\n"
    )
    code = """
import os, sys
import numpy as np
from pathlib import Path
os.environ["FLEET_HOME"] = sys.argv[1]
from fleet.commands.invocation import Invocation
from fleet.commands.operate.processes import opened
from fleet.log.readers.positions import Positions
with Invocation(config=Path(sys.argv[1], "fleet.yaml")).open() as fleet:
    with opened(fleet, "127.0.0.1:0"):
        Positions().commit_rows(*np.arange(30).reshape(3, 10))
        print(*sys.modules)
"""
    found = set(ran(code, str(tmp_path)))
    assert "fleet.log.readers.tail" in found
    assert not {name: why for name, why in NOT_WHERE_ONE_ONLY_LOOKS.items() if name in found}


@pytest.mark.parametrize("library", [OSError("libc.so.6: no such file"), object()])
def test_another_c_library_is_left_as_it_is(
    library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS there is no libc.so.6, and others have no such functions in theirs."""

    def load(_: str) -> object:
        if isinstance(library, OSError):
            raise library
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    memory_files.map_from(1 << 16)
    memory_files.one_heap()
    memory_files.trim()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_what_a_look_frees_goes_back() -> None:
    """Columns between which something stays: without the setting hardly any of them goes back."""
    code = """
import ctypes, sys
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
from fleet.system.memory_files import map_from
if sys.argv[1] == "set":
    map_from(1 << 16)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
def block(size):
    at = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(at, 1, size)
    return at
libc.free(block(16 << 20))  # from now on glibc's own limit is as large
before = resident()
columns = []
for _ in range(100):
    columns.append(block(384 << 10))
    block(100)  # stays
for column in columns[:-1]:
    libc.free(column)
print((resident() - before) >> 20)
"""
    assert int(ran(code, "set")[0]) <= 2
    assert int(ran(code, "not set")[0]) >= 20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_threads_share_one_heap() -> None:
    """Each thread that begins would get one of its own."""
    code = """
import ctypes, os, sys, threading
from fleet.system.memory_files import one_heap
if sys.argv[1] == "set":
    one_heap()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
threads = threading.Barrier(4)
def takes():
    libc.malloc(ctypes.c_size_t(1000))
    threads.wait(10)
started = [threading.Thread(target=takes) for _ in range(4)]
for each in started:
    each.start()
for each in started:
    each.join()
told = os.memfd_create("told")
file = ctypes.c_void_p(libc.fdopen(told, b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
print(os.pread(told, 1 << 20, 0).count(b"<heap nr="))
"""
    assert ran(code, "set") == ["1"]
    assert int(ran(code, "not set")[0]) > 1
