"""Keeps the decisions of scaling policies that are news. Pure.

Problem: a policy decides once a minute, and nearly every decision repeats the one before. Choice: a
decision is kept if the wanted number, the slots, the members or the reason changed, else every
`EVERY` seconds. Reasons are compared without their figures. A reason that was kept within this time
is no news, so that a policy between two reasons does not fill the log. A group keeps `KEPT`
decisions, compressed: on Kubernetes a group's ConfigMap is written whole. Cost: figures between two
kept decisions are lost, and so is one decision if two managers decide at the same moment.
"""

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

KEPT: Final = 120
"""Most decisions kept of a group: ten days in which nothing changes."""
EVERY: Final = 7_200.0
"""Seconds after which a decision is kept although nothing changed: each is an event of Dagster with
9 kB, 32 MB a day for 300 groups."""
_LONGEST: Final = 2 * EVERY
"""Most seconds between two decisions that count as member hours: longer, and no policy checked the
group."""
_FIGURE: Final = re.compile(r"(?<![\w-])\d[\d.,]*(?: (?:ms|s|min|h|d)\b)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDecision:
    """What a policy decided, with its reason and figures."""

    at: float
    """Time of the snapshot, wall-clock seconds."""
    wanted: int
    current: int
    """Open slots, or pods of an adopted Deployment."""
    members: int
    lag: int | None
    """Waiting records; None: unknown."""
    lag_seconds: float | None
    """Age of the oldest waiting record; None: unknown."""
    reason: str
    refused: str = ""
    """Why the plan of this decision was refused; empty if it was not."""
    member_hours: float = 0.0
    """What the members cost since the first kept decision."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Returns the reason, and why the plan was refused."""
        return f"{self.reason}; refused: {self.refused}" if self.refused else self.reason

    def after(self, last: "KeptDecision | None") -> "KeptDecision":
        """Returns it with the member hours since `last`."""
        if last is None:
            return self
        seconds = min(max(0.0, self.at - last.at), _LONGEST)
        spent = last.member_hours + last.members * seconds / 3_600.0
        return replace(self, member_hours=round(spent, 4))


def is_news(
    made: KeptDecision, last: KeptDecision, kept: Callable[[], Iterable[KeptDecision]]
) -> bool:
    """Tells whether a decision has to be kept; `kept` reads all that are."""
    if _numbers(made) != _numbers(last) or not 0 <= made.at - last.at < EVERY:
        return True
    key = _without_figures(made)
    return key != _without_figures(last) and not any(
        0 <= made.at - each.at < EVERY
        and _numbers(each) == _numbers(made)
        and _without_figures(each) == key
        for each in kept()
    )


def _numbers(made: KeptDecision) -> tuple[int, int, int]:
    return made.wanted, made.current, made.members


def _without_figures(made: KeptDecision) -> tuple[str, str]:
    """Returns the reason without figures, units and plurals."""

    def plain(text: str) -> str:
        return re.sub(r"s\b", "", _FIGURE.sub("#", text))

    return plain(made.reason), plain(made.refused)


def pack(rows: Sequence[Mapping[str, object]]) -> str:
    """Compresses the last `KEPT` decisions, which are JSON."""
    return b64encode(zlib.compress(json.dumps(rows[-KEPT:]).encode())).decode()


def unpack(packed: object) -> list[Mapping[str, object]]:
    """Returns what `pack` compressed; empty if it is not readable."""
    try:
        found = json.loads(zlib.decompress(b64decode(str(packed or ""))))
    except (ValueError, zlib.error):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
