"""Where the model and Kafka's own coordinator part, and the shortest story that shows it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tests.conformance.classic_acts import Story, Turn, played, scenario
from tests.conformance.kafka_group_manager import KafkaGroupManager, Played
from tests.conformance.kafka_json import as_json

Event = TypeVar("Event")


class Difference(NamedTuple):
    """The first thing that differs."""

    number: int
    """Of the act."""
    what: str
    model: Any
    kafka: Any

    def __str__(self) -> str:
        model, kafka = _parting(self.model, self.kafka)
        return f"act {self.number}, {self.what}\n  model: {model}\n  Kafka: {kafka}"


def first_difference(turns: Sequence[Turn], steps: Sequence[Played]) -> Difference | None:
    """None where every answer, timer, record, state and member is the same."""
    for number, (turn, step) in enumerate(zip(turns, steps, strict=True)):
        for what, model, kafka in _compared(turn, step):
            if model != kafka:
                return Difference(number, what, model, kafka)
    return None


def _compared(turn: Turn, step: Played) -> Iterator[tuple[str, Any, Any]]:
    yield "time", turn.at, step.at
    yield "timers that went off", turn.step.fired, step.fired
    if turn.step.answers or step.answers:
        yield (
            "answers",
            {number: _answer(body) for number, body in turn.step.answers.items()},
            {number: _kafkas(found.body) for number, found in sorted(step.answers.items())},
        )
    yield "records", turn.step.records, step.records
    yield "groups", turn.picture, step.groups
    yield "timers", list(turn.timers.items()), list(step.timers.items())


def _answer(body: Any) -> Any:
    found = as_json(body)
    if isinstance(found, dict) and "topics" in found:  # an OffsetCommit has no code of its own
        code = found.pop("errorCode")
        return {"errorCode": code} if code else found
    return found


def _kafkas(body: dict[str, Any]) -> dict[str, Any]:
    body.pop("throttleTimeMs", None)
    return body


def find(kafka: KafkaGroupManager, story: Story) -> Difference | None:
    """Both play it."""
    turns = played(story)
    (steps,) = kafka.play([scenario(story, turns)])
    return first_difference(turns, steps)


def shortest(events: Sequence[Event], differs: Callable[[Sequence[Event]], object]) -> list[Event]:
    """Without any run of events that is not needed for a difference; long runs are tried first."""
    kept = list(events)
    size = max(1, len(kept) // 2)
    while size:
        at, shorter = 0, False
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fewer and differs(fewer):
                kept, shorter = fewer, True
            else:
                at += size
        size = size // 2 if size > 1 else int(shorter)
    return kept


def as_test(story: Story, difference: Difference) -> str:
    """A test's body, to be given a name and what Kafka does."""
    return f"{difference}\n\nSTORY = {story}\n"


def _parting(model: Any, kafka: Any) -> tuple[Any, Any]:
    """The parts of both that differ."""
    if isinstance(model, dict) and isinstance(kafka, dict):
        keys = [k for k in {**model, **kafka} if model.get(k, "-") != kafka.get(k, "-")]
        if len(keys) == 1 and keys[0] in model and keys[0] in kafka:
            return _parting(model[keys[0]], kafka[keys[0]])
        return {k: model.get(k, "-") for k in keys}, {k: kafka.get(k, "-") for k in keys}
    if isinstance(model, list) and isinstance(kafka, list) and len(model) == len(kafka):
        pairs = [_parting(a, b) for a, b in zip(model, kafka, strict=True) if a != b]
        return [a for a, _ in pairs], [b for _, b in pairs]
    return model, kafka
