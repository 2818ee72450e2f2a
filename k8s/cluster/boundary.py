"""The namespaces that a cluster lives in: made, entered, ended.

Problem: kubelet and containerd leave mounts, shims, interfaces, rules and changed kernel settings
on the machine they run on, and a killed one leaves them for good. Choice: process 1 of a new pid,
mount and network namespace does nothing but reap; everything else enters it. Killing that one
process kills all of them, and the kernel then drops every mount, interface, route and rule that
they made. Only the cluster's cgroups stand in the machine's own tree, below one name. /run and
/var/lib are the cluster's own, and kernel settings that a kubelet would change machine-wide are
covered by files that say they have been changed. Cost: root.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fleet.errors import FleetError
from fleet.system import processes
from fleet.system.processes import ProcessId
from k8s.cluster import programs
from k8s.cluster.cluster_layout import INSIDE, Layout

_REAP: Final = (
    "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile 1: signal.pause()"
)
# What a kubelet insists on; these are not per namespace.
_KERNEL: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_SECONDS: Final = 20.0


def start(layout: Layout) -> ProcessId:
    """Process 1 of new namespaces; known again by `find`."""
    namespaces = ["--pid", "--mount-proc", "--mount", "--net"]
    reaper = [sys.executable, "-I", "-S", "-c", _REAP, _mark(layout.folder)]
    return processes.spawn(
        [programs.path("unshare"), "--fork", "--kill-child=SIGKILL", *namespaces, *reaper],
        log=layout.log("boundary"),
        cwd=Path("/"),
    )


def find(folder: Path) -> ProcessId | None:
    """The process of a start that was killed before it wrote down who it is."""
    return processes.find(programs.path("unshare"), _mark(folder))


def furnish(layout: Layout, outer: ProcessId) -> None:
    """Mounts, interfaces and settings inside, and the interface on the machine."""
    for tree in _cgroup_trees():
        _make_cgroup(tree, layout.name)
    run(outer, "sh", "-euc", _mounts(), "sh", str(layout.folder))
    pid = str(_first(outer))
    uplink = ["link", "add", layout.name, "type", "veth", "peer", "name", "uplink", "netns", pid]
    for words in (
        uplink,
        ["address", "add", f"{layout.host_address}/30", "dev", layout.name],
        ["link", "set", layout.name, "up"],
    ):
        _check(["ip", *words])
    for words in (
        ["link", "set", "lo", "up"],
        ["address", "add", f"{layout.node_address}/30", "dev", "uplink"],
        ["link", "set", "uplink", "up"],
    ):
        run(outer, "ip", *words)
    run(outer, "sh", "-euc", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    _check(["ip", "route", "add", layout.pods, "via", layout.node_address])


def enter(outer: ProcessId, *argv: str) -> list[str]:
    """The arguments that run a program inside. FleetError if the boundary has ended."""
    into = [f"--target={_first(outer)}", "--mount", "--net", "--pid"]
    return [programs.path("nsenter"), *into, "--", *argv]


def run(outer: ProcessId, *argv: str) -> str:
    """Run a program inside and return what it printed; FleetError with its words where it fails."""
    return _check(enter(outer, *argv))


def end(layout: Layout, outer: ProcessId | None) -> None:
    """Kill everything inside and wait until the machine shows nothing of it."""
    if outer is not None:
        processes.signal_group(outer, signal.SIGKILL)
        processes.wait_ended(outer, timeout=_SECONDS)
    deadline = time.monotonic() + _SECONDS
    while remains := [*_cgroups(layout.name), *_interface(layout.name)]:
        for path in remains:
            with contextlib.suppress(OSError, FleetError):
                if path in _interface(layout.name):  # the kernel takes its time on a busy machine
                    _check(["ip", "link", "delete", layout.name])
                else:
                    path.rmdir()  # refused while a process is still ending in it
        if time.monotonic() >= deadline:
            raise FleetError(
                f"{remains[0]} still exists after the cluster was stopped; delete it by hand"
            )
        time.sleep(0.05)


def leftovers(layout: Layout) -> list[str]:
    """What the machine still shows of a cluster: cgroups, its interface, mounts."""
    mounts = [
        line.split()[1]
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        if line.split()[1].startswith((f"{layout.folder}/", f"{INSIDE}/"))
    ]
    return [*map(str, _cgroups(layout.name)), *map(str, _interface(layout.name)), *mounts]


def _mounts() -> str:
    """$1: the cluster's folder, which may itself lie under what is covered here."""
    covered = "".join(
        f"printf '{value}\\n' > {INSIDE}/kernel/{key.replace('/', '.')}\n"
        f"[ ! -e /proc/sys/{key} ] || "
        f"mount --bind {INSIDE}/kernel/{key.replace('/', '.')} /proc/sys/{key}\n"
        for key, value in _KERNEL.items()
    )
    return f"""
cd "$1"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p {INSIDE} /run/lock
mount --bind . {INSIDE}
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir -p {INSIDE}/var-log {INSIDE}/kernel
mount --bind {INSIDE}/var-log /var/log
{covered}
mount --make-rshared /
"""


def _first(outer: ProcessId) -> int:
    """The machine's pid of the namespaces' process 1."""
    deadline = time.monotonic() + _SECONDS
    while processes.alive(outer):
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        with contextlib.suppress(OSError):
            found = children.read_text(encoding="utf-8").split()
            if found and _REAP.encode() in Path(f"/proc/{found[0]}/cmdline").read_bytes():
                return int(found[0])
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    raise FleetError("the cluster's namespaces do not exist; run `make cluster` to create them")


def _mark(folder: Path) -> str:
    return f"cluster={folder}"


def _cgroup_trees() -> list[Path]:
    """The roots of the machine's cgroup hierarchies."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    mounts = [line.split() for line in lines]
    return [Path(path) for _, path, kind, *_ in mounts if kind in {"cgroup", "cgroup2"}]


def _make_cgroup(tree: Path, name: str) -> None:
    """Below which the kubelet makes those of pods."""
    made = tree / name
    made.mkdir(exist_ok=True)
    for key in ("cpuset.cpus", "cpuset.mems"):
        # In a hierarchy of version 1 a new group may use no processor until its set is written.
        if (made / key).exists() and not (made / key).read_text(encoding="ascii").strip():
            with contextlib.suppress(OSError):
                (made / key).write_text((tree / key).read_text(encoding="ascii"), encoding="ascii")


def _cgroups(name: str) -> Iterator[Path]:
    """The cluster's cgroups, the innermost first."""
    for tree in _cgroup_trees():
        for folder, _, _ in os.walk(tree / name, topdown=False):
            yield Path(folder)


def _interface(name: str) -> list[Path]:
    path = Path("/sys/class/net") / name
    return [path] if path.exists() else []


def _check(argv: Sequence[str]) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd="/"
    )
    if done.returncode != 0:
        raise FleetError(f"`{' '.join(argv)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
