"""One real cluster for a whole test session, shared by all its processes (session_home.py).

A developer who sets FLEET_TEST_CLUSTER to the home of a cluster that runs already
(`FLEET_HOME=... make cluster`) has it used and left as it is.
"""

import shutil
import sys
from pathlib import Path

from tests.support.session_home import SessionHome

HOME = SessionHome("FLEET_TEST_CLUSTER", "fleet-kube")


def end_session() -> None:
    """End the cluster where this process chose it; nothing of it is left."""
    home = HOME.own()
    if home is not None and home.exists():
        _end(home)


def end_for_all() -> None:
    """Before the session ends, where no process of it asks any more and it chose the cluster."""
    if HOME.chosen() and HOME.path.exists():
        _end(HOME.path)


def _end(home: Path) -> None:
    from k8s.cluster.lifecycle import TrialCluster

    TrialCluster(home).down()
    shutil.rmtree(home)


if __name__ == "__main__":  # for a pytest that was killed (dying.py)
    _end(Path(sys.argv[1]))
