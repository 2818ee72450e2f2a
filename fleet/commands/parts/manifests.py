"""`fleet manifests`: fleet.yaml as Kubernetes objects."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from fleet.clock import SystemClock
from fleet.commands.invocation import Invocation, common
from fleet.commands.targets import groups_argument
from fleet.system.runtimes import PARTS, runtime_kind

if TYPE_CHECKING:
    from fleet.act.runtime import Manifests, RuntimeKind

_ALL: Final = "all"


@click.command(epilog="Example:  fleet manifests orders-enrichment | kubectl apply -f -")
@groups_argument
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice([*PARTS, _ALL]),
    help="Part to render; repeatable (default: workers).",
)
@click.option(
    "--image",
    metavar="NAME",
    help="Image of manager, which must be named, and exporter (default: runtime.image).",
)
@click.option(
    "--output",
    "-o",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Output format; JSON is one List.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for one file per fleet and part, with kustomization.yaml (default: print).",
)
@click.option(
    "--dry-run",
    type=click.Choice(["server"]),
    help="Have the API server check every object without creating it.",
)
@common
def manifests(
    invocation: Invocation,
    *,
    groups: tuple[str, ...],
    parts: tuple[str, ...],
    image: str | None,
    output: Literal["yaml", "json"],
    output_dir: Path | None,
    dry_run: str | None,
) -> None:
    """Render fleet.yaml for a cluster.

    With runtime: {kind: kubernetes} each fleet is a Deployment, a PodDisruptionBudget, Leases,
    ConfigMaps and a ServiceAccount with its Role. Applied to an empty cluster the workers start to
    consume by themselves; a manager that comes later finds nothing to roll. Parts beside `workers`:
    `manager` (Dagster), `exporter`, `network` (policies) and `monitoring`, which needs the CRDs of
    Prometheus Operator. Secrets are never rendered: those that are expected are named on stderr.
    """
    if output_dir is not None and dry_run is not None:
        raise click.UsageError("--output-dir writes and --dry-run asks: give one of them")
    chosen = frozenset(PARTS if _ALL in parts else parts or ("workers",))
    if "manager" in chosen and image is None:
        raise click.UsageError(
            "--part manager needs --image NAME: one with Dagster in it, such as the fleet-manager "
            "of `make images`; workers' images have none. Name runtime.image where that holds both"
        )
    path = invocation.existing_path()
    from fleet.act.runtime import ManifestOptions
    from fleet.config.load import load

    spec = load(path, os.environ)
    kind: RuntimeKind = runtime_kind(spec.runtime.kind)
    made = kind.manifests(
        spec,
        ManifestOptions(
            text=path.read_text(encoding="utf-8"),
            parts=chosen,
            groups=groups,
            image=image,
        ),
    )
    if dry_run is not None:
        for sentence in kind.try_out(spec, made, environ=os.environ, clock=SystemClock()):
            click.echo(sentence)
        return
    if output_dir is not None:
        _write(made, output_dir)
    else:
        click.echo(as_json(made) if output == "json" else as_yaml(made.objects), nl=False)
    if made.secrets:
        click.echo(
            f"fleet manifests: the pods need these Secrets, which are not rendered: "
            f"{', '.join(made.secrets)}",
            err=True,
        )


def as_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """One document each; texts of several lines stay readable."""
    from fleet.config.yaml_text import dump

    return "".join(f"---\n{dump(each)}" for each in objects)


def as_json(made: "Manifests") -> str:
    """One List, as kubectl reads it."""
    whole = {"apiVersion": "v1", "kind": "List", "items": list(made.objects)}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _write(made: "Manifests", folder: Path) -> None:
    """A file per fleet and per part; what an earlier rendering left is not listed any more."""
    from fleet.system.home import write_whole

    files: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in made.objects:
        files[_file_of(each)].append(each)
    for name, objects in files.items():
        write_whole(folder / name, as_yaml(objects))
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(files),
    }
    write_whole(folder / "kustomization.yaml", as_yaml([listed]))
    click.echo(f"wrote {len(files)} files and kustomization.yaml to {folder}", err=True)


def _file_of(each: Mapping[str, Any]) -> str:
    labels = each["metadata"].get("labels", {})
    fleet, app = labels.get("fleet/name"), labels.get("app.kubernetes.io/name")
    return f"{fleet or app or each['kind'].lower()}.yaml"
