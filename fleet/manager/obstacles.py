"""Finds obstacles to starting a group's workers before a plan is carried out: Java and code.

Problem: a worker that cannot start is noticed only after its warm-up timeout, in a pod even later.
Choice: a plan states all that can be checked here without running code. Cost: the content of an
image is unknown here, so that a pod's code gets only a note.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fleet.broker.jars import find_java
from fleet.config.spec import GroupSpec, KubernetesRuntimeSpec
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import FleetError
from fleet.model import Plan, StepKind
from fleet.system.code import examine_entrypoint, lies_beside

_STARTS = frozenset(StepKind) - {StepKind.LEAVE}


def find_obstacles(
    spec: GroupSpec, plan: Plan, *, environ: Mapping[str, str], here: Path
) -> Vetoes:
    """Returns obstacles to a plan that starts workers; here: the folder of fleet.yaml.

    Raises ConfigError if the entrypoint's source is here but lacks the function.
    """
    worker = spec.worker
    if worker is None or not any(step.kind in _STARTS for step in plan.steps):
        return NO_CONCERNS
    examine_entrypoint(spec)
    if isinstance(spec.runtime, KubernetesRuntimeSpec):
        found = lies_beside(spec, here)
        if found is None:
            return NO_CONCERNS
        note = (
            f"the code of {worker.entrypoint} comes from the image, but {found} is here; if the "
            "image lacks it, write python_path: [.] under worker"
        )
        return Vetoes(notes=(note,))
    if worker.command or worker.spark.startswith("sc://"):
        return NO_CONCERNS
    problem = _java_problem(environ.get("JAVA_HOME"), environ.get("PATH"))
    return NO_CONCERNS if problem is None else Vetoes(refusals=(problem,))


@cache
def _java_problem(java_home: str | None, path: str | None) -> str | None:
    """Returns why Java does not work here; runs Java once per process to read its version."""
    named = {"JAVA_HOME": java_home, "PATH": path}
    try:
        find_java({name: value for name, value in named.items() if value is not None})
    except FleetError as error:
        return f"workers cannot start here: {error}"
    return None
