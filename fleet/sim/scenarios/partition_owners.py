"""Who processes which partition, and how long each had nobody."""

from collections.abc import Iterable


class PartitionOwners:
    """Of one topic. Times in ms; what was before `began` does not count."""

    def __init__(self, partitions: int, began: int) -> None:
        self.owner: list[int | None] = [None] * partitions
        self.unowned = partitions
        """How many of them are None."""
        self.began = began
        self.changed_at = began
        """When somebody took up a partition last."""
        self.moved = 0
        """Times that a partition got another owner than before."""
        self.longest = 0
        self.paused = [0] * partitions
        self._last: list[int | None] = [None] * partitions
        self._since = [0] * partitions

    def own(self, who: int, partitions: Iterable[int], now: int) -> None:
        """A member processes these from now on."""
        for each in partitions:
            if self.owner[each] is None:
                self.unowned -= 1
                self._pause_over(each, now)
            if self._last[each] not in {None, who} and now >= self.began:
                self.moved += 1
            self.owner[each] = self._last[each] = who
            self.changed_at = max(now, self.began)

    def disown(self, who: int, partitions: Iterable[int], now: int) -> None:
        """It does not any more; nothing where another does."""
        for each in partitions:
            if self.owner[each] == who:
                self.owner[each], self._since[each] = None, now
                self.unowned += 1

    def end(self, now: int) -> None:
        """Whoever has nobody had nobody until now."""
        for partition, owner in enumerate(self.owner):
            if owner is None:
                self._pause_over(partition, now)

    def _pause_over(self, partition: int, now: int) -> None:
        pause = now - max(self._since[partition], self.began)
        if pause > 0:
            self.paused[partition] += pause
            self.longest = max(self.longest, pause)
