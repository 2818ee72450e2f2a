"""One look's deadline, and what went wrong in it.

Problem: a look makes thousands of calls; each may fail or hang for itself, and none may take the
whole look along. Choice: one deadline over all; a failed call becomes part of one sentence per
reason; many keys are asked for in portions. Cost: a portion begins when the one before is answered.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError

from fleet.clock import Clock

T = TypeVar("T")
K = TypeVar("K")

LEAST: Final = 0.1
_IN_FLIGHT: Final = 200
"""Keys asked about together. One describe of 5,000 groups never comes back (librdkafka 2.16)."""
_NAMED: Final = 5
"""Groups or topics named in one sentence about a failure."""


@dataclass(slots=True)
class Poll:
    """The deadline of one look and what went wrong during it."""

    clock: Clock
    timeout: float
    began: float = field(init=False)
    problems: list[str] = field(default_factory=list)
    partial: bool = False
    """Some broker did not list its groups."""
    silent: bool = False
    """Some request was not answered in time."""

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()

    def left(self) -> float:
        """Seconds left, at least a little: what is already there can still be taken."""
        return max(LEAST, self.began + self.timeout - self.clock.monotonic())

    def error_of(self, future: "Future[Any]") -> BaseException | None:
        """Wait for a future; its error, None where it has a result.

        Not by catching what `result()` raises: the future would keep that error with our
        frames, and these the AdminClient, which then ends whenever and on whichever thread
        garbage is collected. On librdkafka's own thread that never returns.
        """
        error: BaseException | None
        try:
            error = future.exception(self.left())
        except FutureTimeout as late:
            error = late.with_traceback(None)  # it, too, holds the frames that will hold it
        self.silent |= _is_late(error)
        return error

    def gather(
        self, futures: Mapping[K, "Future[Any]"], what: str, take: Callable[[Any], T]
    ) -> dict[K, T]:
        """Results of those that came; failures are told in one sentence per reason."""
        return self.gather_all(
            list(futures), lambda portion: {key: futures[key] for key in portion}, what, take
        )

    def gather_all(
        self,
        keys: list[K],
        ask: Callable[[list[K]], Mapping[K, "Future[Any]"]],
        what: str,
        take: Callable[[Any], T],
    ) -> dict[K, T]:
        """The same for so many keys that they are asked for in portions."""
        found: dict[K, T] = {}
        failed: dict[str, list[str]] = {}
        for first in range(0, len(keys), _IN_FLIGHT):
            for key, future in ask(keys[first : first + _IN_FLIGHT]).items():
                error = self.error_of(future)
                if error is None:
                    found[key] = take(future.result())
                else:
                    failed.setdefault(reason(error), []).append(str(key))
        for why, names in failed.items():
            named = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            self.problems.append(f"{len(names)} {what} ({why}): {named}")
        return found


def _is_late(error: BaseException | None) -> bool:
    if isinstance(error, FutureTimeout):
        return True
    first = error.args[0] if error is not None and error.args else None
    return isinstance(first, KafkaError) and first.code() == KafkaError._TIMED_OUT  # noqa: SLF001


def reason(error: BaseException) -> str:
    """Why a call failed, in librdkafka's words."""
    first = error.args[0] if error.args else None
    if isinstance(first, KafkaError):
        return str(first.str())
    return str(error) or "no answer in time"
