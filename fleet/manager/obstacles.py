"""What stands against starting a group's workers before a plan is carried out: Java, and the code.

Problem: a worker that cannot start shows it after its warm-up has timed out, and in a pod half a
minute later. Choice: what can be known here without running anything is said with the plan. Cost:
what an image holds is not known here, so that of a pod's code only a note can be given.
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


def obstacles(spec: GroupSpec, plan: Plan, *, environ: Mapping[str, str], here: Path) -> Vetoes:
    """Against a plan with steps that start workers; here: the folder that fleet.yaml is used in.

    Raises ConfigError where the entrypoint's source is here and has no such function.
    """
    worker = spec.worker
    if worker is None or not any(step.kind in _STARTS for step in plan.steps):
        return NO_CONCERNS
    examine_entrypoint(spec)
    if isinstance(spec.runtime, KubernetesRuntimeSpec):
        found = lies_beside(spec, here)
        if found is None:
            return NO_CONCERNS
        told = (
            f"the code of {worker.entrypoint} is taken from the image, but {found} lies here: "
            "unless the image holds it too, write python_path: [.] under worker"
        )
        return Vetoes(notes=(told,))
    if worker.spark.startswith("sc://"):
        return NO_CONCERNS
    problem = _java_problem(environ.get("JAVA_HOME"), environ.get("PATH"))
    return NO_CONCERNS if problem is None else Vetoes(refusals=(problem,))


@cache
def _java_problem(java_home: str | None, path: str | None) -> str | None:
    """Java is run to learn its version: once per process, not once per group and tick."""
    named = {"JAVA_HOME": java_home, "PATH": path}
    try:
        find_java({name: value for name, value in named.items() if value is not None})
    except FleetError as error:
        return f"workers cannot start here: {error}"
    return None
