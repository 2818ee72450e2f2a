"""The coordinator's log by its name, and the error of who may not read it: no client is loaded."""

from typing import Final

from fleet.errors import FleetError

TOPIC: Final = "__consumer_offsets"


class Unreadable(FleetError):
    """The coordinator's records may not be read here; receipts are unverified then."""
