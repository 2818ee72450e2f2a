"""What a runtime has to say of a plan: the place where workers run is not always ours alone."""

from dataclasses import dataclass, replace
from typing import Final

from fleet.model import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetoes:
    """Reasons against carrying a plan out, and what a person should know of it."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def told_in(self, plan: Plan) -> Plan:
        """The plan with these; an empty plan has nothing to hold up."""
        if not (self.refusals or self.notes):
            return plan
        against = self.refusals if plan.steps else ()
        return replace(plan, refusals=(*plan.refusals, *against), notes=(*plan.notes, *self.notes))


NO_CONCERNS: Final = Vetoes()
