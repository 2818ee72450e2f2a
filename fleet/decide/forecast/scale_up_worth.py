"""Whether more members are worth their rebalance. Pure.

Problem: a policy that scales by lag asks for members for a backlog that those there have read
before new ones own anything; the rebalance then costs time and brings none. Choice: by the group's
measured rates the time until nothing waits is told for both, with the price's own pause and
backlog; more members have to end it sooner. Only a policy is held to that: a person, a fixed number
and the least that is declared are not. Cost: rates of now; where one is not known, nothing is held
up.
"""

from fleet.config.spec import LagScaling
from fleet.decide.forecast.expected_costs import Flow
from fleet.decide.world import GroupWorld
from fleet.model import Plan, StepKind
from fleet.text import duration, plural


def not_worth(world: GroupWorld, plan: Plan) -> str:
    """Why a policy's scale-up, priced by `foretold`, waits; empty: nothing speaks against it."""
    spec, held = world.spec, len(world.open_slots())
    flow = Flow.measured(world)
    if not isinstance(spec.scaling, LagScaling) or held < max(1, spec.replicas.min):
        return ""
    if flow is None or [step.kind for step in plan.steps] != [StepKind.OPEN]:
        return ""
    price = plan.steps[0].price
    alone = flow.gone_after(flow.waiting, members=held)
    if alone is None or price.settled_s is None or price.backlog is None:
        return ""
    more = held + len(plan.steps[0].slots)
    left = flow.gone_after(price.backlog, members=more)
    if left is None or price.settled_s + left < alone:
        return ""
    return (
        f"{plural(more - held, 'slot')} more would cost more than they bring: the {held} there are "
        f"have read the {plural(round(flow.waiting), 'record')} that wait in {duration(alone)}, "
        f"{more} in {duration(price.settled_s + left)}, of which {price.settled_s:.1f} s are "
        f"{plural(price.rebalances_expected or 0, 'rebalance')} with "
        f"{plural(price.moved_expected or 0, 'partition')} moved; they open when more waits, or by "
        f"`fleet scale {spec.group} {more}`"
    )
