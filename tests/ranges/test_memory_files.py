"""Files in memory do not outlive their process, and nobody else's are touched."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.system.memory_files import MemoryFolder, memory_place, sweep

_HOLDS = """
import sys, time
from pathlib import Path
from fleet.system.memory_files import MemoryFolder
folder = MemoryFolder(Path(sys.argv[1]))
(folder.path / "1.parquet").write_bytes(b"x" * 1000)
print(folder.path, flush=True)
time.sleep(60)
"""


def left(place: Path) -> list[str]:
    """Names of everything in it, but for the user's own folder."""
    return sorted(each.name for each in place.rglob("*"))[1:]


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path):
    """A kill -9 removes nothing; a stopped process is alive."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        owner.send_signal(signal.SIGSTOP)
        assert sweep(tmp_path) == 0
        assert (path / "1.parquet").exists(), "it only stands still"
    finally:
        owner.kill()
        owner.wait(120)
    assert (path / "1.parquet").exists()
    with MemoryFolder(tmp_path) as mine:
        assert not path.exists()
        assert mine.path.exists()
        assert sweep(tmp_path) == 0, "ours is not swept by ourselves either"
    assert left(tmp_path) == []


def test_only_this_user_may_look_into_it(tmp_path: Path):
    """The records of a topic stand in it, and /dev/shm is everybody's."""
    with MemoryFolder(tmp_path) as mine:
        assert mine.path.stat().st_mode & 0o777 == 0o700
        assert mine.path.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / f"fleet-{os.getuid()}").chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        MemoryFolder(tmp_path)
    assert sweep(tmp_path) == 0


def test_where_it_is(tmp_path: Path):
    """/dev/shm unless $FLEET_SHM names another folder; an empty one means none."""
    assert memory_place({"FLEET_SHM": str(tmp_path)}) == tmp_path
    assert memory_place({"FLEET_SHM": ""}) is None
    assert memory_place({"FLEET_SHM": str(tmp_path / "absent")}) is None
    usual = Path("/dev/shm")
    assert memory_place({}) == (usual if usual.is_dir() else None)
