"""Making up for workers: a warm standby for each open slot without a holder, and those wanted."""

from fleet.act.steps.work import StepWork
from fleet.model import Step
from fleet.text import plural


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Wait until every slot that may be held is, and as many standbys as are wanted are warm."""
    standby = work.spec.replicas.standby
    gate = work.gate()
    numbers = gate.open - gate.quarantined
    unheld = numbers - work.pool.holders().keys()
    grace = work.spec.rollout.drain_timeout
    work.pool.settle_standbys(step.revision, standby + len(unheld), grace=grace)

    def manned() -> bool:
        work.pool.raise_if_ill(step.revision)
        held = numbers <= work.pool.holders().keys()
        return held and len(work.pool.warm(step.revision)) >= standby

    limit = work.spec.rollout.warm_timeout + work.spec.runtime.lease
    work.wait(manned, limit, f"every open slot to be held and {plural(standby, 'warm standby')}")
    return ()
