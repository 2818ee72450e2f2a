"""What brokers are set to, of what bounds a group."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Of the brokers that were asked, the narrowest; None = not known.

    Times in seconds: `group.initial.rebalance.delay.ms`, `group.min.session.timeout.ms` and
    `group.max.session.timeout.ms`. Members: `group.max.size`, `group.consumer.max.size`.
    """

    initial_delay: float | None = None
    least_session: float | None = None
    longest_session: float | None = None
    classic_members: int | None = None
    consumer_members: int | None = None


UNKNOWN: Final = BrokerLimits()
