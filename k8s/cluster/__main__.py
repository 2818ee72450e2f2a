"""`python -m k8s.cluster up|down|status|build|stop|start|load`: what `make cluster` calls."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import FleetError
from fleet.system.home import fleet_home
from k8s.cluster import programs

if TYPE_CHECKING:
    from k8s.cluster.lifecycle import ClusterStatus, TrialCluster


def main() -> int:
    """Runs a command; returns 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m k8s.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="build what is missing and start; nothing with KUBECONFIG set")
    commands.add_parser("down", help="end the cluster and delete all of it")
    commands.add_parser("status", help="addresses and components")
    commands.add_parser("build", help="only build the programs")
    for name in ("stop", "start"):
        commands.add_parser(name, help=f"{name} one component").add_argument("component")
    commands.add_parser("load", help="import image archives").add_argument("archives", nargs="+")
    options = parser.parse_args()
    try:
        _do(options)
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _do(options: argparse.Namespace) -> None:
    if options.command == "build":
        programs.build(_say)  # with nothing but Python: it takes longest, and may be begun first
        return
    from k8s.cluster.lifecycle import TrialCluster  # noqa: PLC0415

    cluster = TrialCluster(fleet_home())
    match options.command:
        case "up":
            _up(cluster)
        case "down":
            cluster.down()
        case "stop":
            cluster.stop(options.component)
        case "start":
            cluster.start(options.component)
        case "load":
            for archive in options.archives:
                with Path(archive).open("rb") as file:
                    sys.stdout.writelines(f"{name}\n" for name in cluster.load(file))
        case _:
            found = cluster.status()
            missing = f"no cluster in {fleet_home()}\n"
            sys.stdout.write(missing if found is None else _status_text(found))


def _up(cluster: "TrialCluster") -> None:
    given = os.environ.get("KUBECONFIG")
    now = cluster.status()
    if given and (now is None or Path(given).absolute() != now.kubeconfig):
        _check_external(given)
        return
    programs.build(_say)
    sys.stdout.write(_status_text(cluster.up(say=_say)))


def _check_external(kubeconfig: str) -> None:
    """Checks that an external cluster answers; changes nothing there."""
    kubectl = str(programs.folder() / "kubectl")
    try:
        done = subprocess.run(
            [kubectl if Path(kubectl).exists() else "kubectl", "get", "--raw=/readyz"],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"cannot reach the cluster of KUBECONFIG={kubeconfig}: {error}") from error
    if done.returncode != 0:
        raise FleetError(f"the cluster of KUBECONFIG={kubeconfig}: {done.stderr.strip()}")
    sys.stdout.write(f"the cluster of KUBECONFIG={kubeconfig} answers; nothing was started\n")


def _status_text(status: "ClusterStatus") -> str:
    lines = [
        f"export KUBECONFIG={status.kubeconfig}",
        f"export PATH={programs.folder()}:$PATH",
        f"# {'running' if status.running else 'not running'}: Kubernetes {programs.version()}",
        f"# API server and node {status.node_address}, pods {status.pods}",
        f"# this machine, as pods reach it: {status.host_address}",
    ]
    stopped = [name for name, pid in status.components.items() if pid is None]
    if stopped:
        lines.append(f"# stopped: {', '.join(stopped)}")
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
