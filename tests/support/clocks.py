"""A clock that is set, and lets others act as time passes."""

from collections.abc import Callable

from fleet.clock import ManualClock


class Turning(ManualClock):
    """A clock of which everything that lives takes notice."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        super().__init__()
        self.turn: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        """Advance, and let everybody take a turn."""
        super().sleep(seconds)
        self.turn()
