"""One process loses its way to the brokers: its packets vanish, no connection is closed.

Problem: brokers here advertise one address to everybody, so that no proxy can stand before one
worker alone. Choice: the kernel's filter, in a chain of this test's own: what the process has open
is known by its ports, and what it opens meanwhile by a control group that it is moved to. Cost:
root, and a kernel with control groups v2; `missing` says what is not there.
"""

import subprocess
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.needs import program


def missing() -> str | None:
    """Why nobody can be cut off here."""
    if program("iptables") is None:
        return "no iptables: run `make deps`"
    if _groups() is None:
        return "no control groups v2 are mounted"
    tried = subprocess.run(["iptables", "-S", "OUTPUT"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "iptables cannot be used: not root?"


@contextmanager
def cut_off(pid: int, ports: Collection[int], *, answers_only: bool = False) -> Iterator[None]:
    """Nothing passes between that process, with its children, and these ports of this machine.

    answers_only: what it sends over the connections that it has arrives, what is sent to it does
    not; a new one cannot be opened.
    """
    groups = _groups()
    name = f"cut-{uuid.uuid4().hex[:8]}"
    family = [pid, *_children(pid)]
    (groups / name).mkdir()
    try:
        with _chain(name):
            for each in family:
                _move(each, groups / name)
            own = {port for each in family for port in _local_ports(each, ports)}
            for port in map(str, ports):
                _drop(name, "--dport", port, "-m", "cgroup", "--path", name)
                for local in map(str, own):
                    _drop(name, "--sport", port, "--dport", local)
                    if not answers_only:
                        _drop(name, "--dport", port, "--sport", local)
            yield
    finally:
        for each in (groups / name / "cgroup.procs").read_text().split():
            _move(int(each), groups)
        (groups / name).rmdir()


def _groups() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next((Path(m[1]) for m in mounts if m[2] == "cgroup2"), None)


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:  # it has ended
        return


def _children(pid: int) -> list[int]:
    """All below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [each for child in map(int, children.split()) for each in (child, *_children(child))]


def _local_ports(pid: int, remote: Collection[int]) -> set[int]:
    """Own ports of its connections to those."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(file.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, far = (int(fields[at].rpartition(":")[2], 16) for at in (1, 2))
        if fields[9] in inodes and far in remote:
            found.add(local)
    return found


@contextmanager
def _chain(name: str) -> Iterator[None]:
    """Both directions of what passes over the loopback device go through a chain of this name."""
    _iptables("-N", name)
    jumps = [("OUTPUT", "-o", "lo", "-p", "tcp", "-j", name)]
    jumps.append(("INPUT", "-i", "lo", "-p", "tcp", "-j", name))
    made = []
    try:
        for jump in jumps:
            _iptables("-I", *jump)
            made.append(jump)
        yield
    finally:
        for jump in made:
            _iptables("-D", *jump)
        _iptables("-F", name)
        _iptables("-X", name)


def _drop(chain: str, *match: str) -> None:
    _iptables("-A", chain, "-p", "tcp", *match, "-j", "DROP")


def _iptables(*arguments: str) -> None:
    # -w: another process may hold the filter's lock.
    done = subprocess.run(
        ["iptables", "-w", "30", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"iptables {' '.join(arguments)}: {done.stderr}"
