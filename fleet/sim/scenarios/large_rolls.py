"""Rolls of large groups, a quarter of the members at a time, by which speed is measured."""

from typing import Final

from fleet.sim.scenarios.group_story import Happening, Scenario

_WAVES: Final = 4


def rolls(members: int, partitions: int) -> dict[str, Scenario]:
    """A quarter of the members after the other, the ordinary way and with Fleet."""
    quarter = -(-members // _WAVES)

    def story(gap: int, away: int, *, static: bool) -> Scenario:
        waves = tuple(
            Happening(
                60_000 + gap * n, "restart", first, away, together=min(quarter, members - first)
            )
            for n, first in enumerate(range(0, members, quarter))
        )
        return Scenario(members, static, partitions, happenings=waves)

    fleet = story(2_000, 50, static=True)
    return {
        "range, ordinary": story(30_000, 5_000, static=False),
        "range, with Fleet": fleet._replace(session_timeout=180_000),
        "KIP-848, ordinary": story(30_000, 5_000, static=False).by("consumer"),
        "KIP-848, with Fleet": fleet.by("consumer"),
    }
