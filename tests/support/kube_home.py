"""One real cluster for a whole test session, shared by all its processes.

The first test that asks for it starts it, under the folder that FLEET_TEST_CLUSTER names; the
process that began the session chooses that folder (so that xdist's workers inherit it) and ends
the cluster when all are done. A developer who sets FLEET_TEST_CLUSTER to the home of a cluster
that runs already (`FLEET_HOME=... make cluster`) has it used and left as it is.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

VARIABLE = "FLEET_TEST_CLUSTER"
_OWNER = "FLEET_TEST_CLUSTER_OWNER"


def begin_session() -> None:
    """Choose where the cluster would be; in the process that began the session."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(Path(tempfile.gettempdir()) / f"fleet-kube-{os.getpid()}")
        os.environ[_OWNER] = str(os.getpid())


def own() -> Path | None:
    """Where it would be, if this process chose that: whoever chose it ends it."""
    mine = os.environ.get(_OWNER) == str(os.getpid())
    return Path(os.environ[VARIABLE]) if mine else None


def end_session() -> None:
    """End the cluster where this process chose it; nothing of it is left."""
    home = own()
    if home is not None and home.exists():
        _end(home)


def end_for_all() -> None:
    """Before the session ends, where no process of it asks any more and it chose the cluster."""
    home = Path(os.environ[VARIABLE])
    if _OWNER in os.environ and home.exists():
        _end(home)


def _end(home: Path) -> None:
    from k8s.cluster.lifecycle import TrialCluster

    TrialCluster(home).down()
    shutil.rmtree(home)


if __name__ == "__main__":  # for a pytest that was killed (dying.py)
    _end(Path(sys.argv[1]))
