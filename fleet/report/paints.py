"""The colours of pictures, for light and for dark paper.

Roles are those of `fleet.report.sketch`. Causes are told apart by their letters too, so that
nobody depends on seeing colours; each is dark enough for white letters.
"""

from typing import Final

from fleet.model.rebalances import Cause
from fleet.report.sketch import paint_of

_CAUSES: Final[dict[Cause, str]] = {
    Cause.CREATED: "#6b7280",
    Cause.JOIN: "#2e8b4f",
    Cause.LEAVE: "#5b4fc4",
    Cause.BATCHED_LEAVE: "#0f8a8f",
    Cause.EXPIRY: "#d0342c",
    Cause.DEPARTURE: "#c2478d",
    Cause.SUBSCRIPTION: "#8e44ad",
    Cause.PARTITIONS: "#8a5a36",
    Cause.ASSIGNOR: "#7f8c1f",
    Cause.LEADER_REJOIN: "#a66f00",
    Cause.SECOND_ROUND: "#3d7ea6",
    Cause.COORDINATOR_MOVE: "#b0413e",
    Cause.MIGRATION: "#4b6584",
    Cause.REBORN: "#1f6f5c",
    Cause.UNKNOWN: "#8c8c8c",
}
_SAME: Final = {
    "pause": "#f2902b",
    "storm": "#e5342a",
    "unknown": "#9a9a9a",
    "on cause": "#ffffff",
    **{paint_of(cause): colour for cause, colour in _CAUSES.items()},
}
LIGHT: Final[dict[str, str]] = {
    "paper": "#ffffff",
    "ink": "#1d2430",
    "faint": "#5d6675",
    "grid": "#dfe3e8",
    "own": "#3f74b5",
    "on own": "#ffffff",
    "replaced": "#1d2430",
    **_SAME,
}
DARK: Final[dict[str, str]] = {
    "paper": "#14181f",
    "ink": "#e6e9ee",
    "faint": "#a0a9b6",
    "grid": "#2b323d",
    "own": "#5d9be0",
    "on own": "#0b0f14",
    "replaced": "#ffffff",
    **_SAME,
}


def css_name(role: str) -> str:
    """A role as the name of a CSS class, and of its variable."""
    return role.replace(" ", "-").replace("↔", "-")


def stylesheet() -> str:
    """A variable and a class that fills for each role, for light and dark paper."""
    return "\n".join(
        [
            f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}",
            *(f".{css_name(p)} {{ fill: var(--{css_name(p)}); }}" for p in LIGHT),
        ]
    )


def _variables(paints: dict[str, str]) -> str:
    return " ".join(f"--{css_name(role)}: {colour};" for role, colour in paints.items())
