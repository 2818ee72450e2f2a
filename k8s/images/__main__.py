"""`python -m k8s.images build|load|context|archive|clean`: what `make images` calls."""

import argparse
import sys
from pathlib import Path

from fleet.errors import FleetError
from fleet.system.home import fleet_home
from k8s.cluster.lifecycle import TrialCluster
from k8s.images import image_build


def main() -> int:
    """Parse, do; 0 done, 1 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m k8s.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "build images of this checkout"),
        ("load", "build them and bring them to the cluster of this state directory"),
    ):
        made = commands.add_parser(name, help=text)
        made.add_argument("targets", nargs="*", default=list(image_build.TARGETS))
        made.add_argument("--tag", default="dev")
    written = commands.add_parser("archive", help="write an image as an OCI archive")
    written.add_argument("image")
    written.add_argument("file", type=Path)
    commands.add_parser("context", help="only gather what a build needs; print the folder")
    commands.add_parser("clean", help="delete images, layers, wheels and bases")
    options = parser.parse_args()
    try:
        _do(options)
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _do(options: argparse.Namespace) -> None:
    match options.command:
        case "build" | "load":
            unknown = sorted(set(options.targets) - set(image_build.TARGETS))
            if unknown:
                raise FleetError(
                    f"no image {unknown[0]} exists; choose from {', '.join(image_build.TARGETS)}"
                )
            names = image_build.build(options.targets, options.tag, _say)
            if options.command == "load":
                image_build.load(names, TrialCluster(fleet_home()))
            for name in names:
                sys.stdout.write(f"{name} {image_build.size(name)}\n")
        case "archive":
            image_build.archive(options.image, options.file)
        case "context":
            sys.stdout.write(f"{image_build.context(_say)}\n")
        case _:
            image_build.clean()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
