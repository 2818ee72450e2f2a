"""A scenario file of `fleet simulate` as values: no unknown keys, no impossible timeouts."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from fleet.config.spec import Strict
from fleet.config.spec_problems import problems_of
from fleet.config.spec_values import Duration
from fleet.config.yaml_tree import Problem, read_tree
from fleet.errors import ConfigError


class NetworkSpec(Strict):
    """How long a message is under way, one way, evenly distributed."""

    shortest: Annotated[Duration, Field(ge=0, le=60)] = 0.001
    longest: Annotated[Duration, Field(ge=0, le=60)] = 0.005

    @model_validator(mode="after")
    def _ordered(self) -> "NetworkSpec":
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest is {self.shortest:g} s, longer than longest ({self.longest:g} s)"
            )
        return self


class EventSpec(Strict):
    """What happens, to which member (from 0); `lasts` and `wait` as docs/simulate.md has them."""

    at: Annotated[Duration, Field(ge=0, le=43_200)]
    do: Literal["start", "leave", "crash", "restart", "slow", "roll", "batched-leave", "failover"]
    member: Annotated[int, Field(ge=0, le=9_999)] = 0
    lasts: Annotated[Duration, Field(ge=0, le=43_200)] = 5.0
    wait: Annotated[Duration, Field(ge=0, le=3_600)] = 10.0
    together: Annotated[int, Field(ge=1, le=1_000)] = 1


class ScenarioSpec(Strict):
    """A group, its members' timeouts, the network, and what happens."""

    members: Annotated[int, Field(ge=1, le=1_000)] = 10
    static: bool = False
    protocol: Literal["range", "roundrobin", "sticky", "cooperative-sticky", "consumer"] = "range"
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 20
    client: Literal["librdkafka", "java-0.10.0", "java-0.10.1"] = "librdkafka"
    session_timeout: Annotated[Duration, Field(ge=6, le=1_800)] | None = None
    heartbeat_interval: Annotated[Duration, Field(ge=0.001, le=3_600)] | None = None
    max_poll_interval: Annotated[Duration, Field(ge=6, le=86_400)] = 300.0
    initial_delay: Annotated[Duration, Field(ge=0, le=3_600)] = 3.0
    assignment_interval: Annotated[Duration, Field(ge=0, le=15)] = 1.0
    nudge: Annotated[Duration, Field(ge=0, le=60)] = 0.0
    start_within: Annotated[Duration, Field(ge=0, le=3_600)] = 1.0
    connects_in: Annotated[Duration, Field(ge=0, le=600)] = 0.0
    drifts_at: Annotated[Duration, Field(ge=0, le=43_200)] = 0.0
    network: NetworkSpec = NetworkSpec()
    events: tuple[EventSpec, ...] = ()

    @property
    def beats_every(self) -> float:
        """Seconds; the protocol's own interval where none is told."""
        if self.heartbeat_interval is not None:
            return self.heartbeat_interval
        return 5.0 if self.protocol == "consumer" else 3.0

    @property
    def session(self) -> float:
        """Seconds; the client's own default where none is told."""
        if self.session_timeout is not None:
            return self.session_timeout
        return {"java-0.10.0": 30.0, "java-0.10.1": 10.0}.get(self.client, 45.0)

    @model_validator(mode="after")
    def _possible(self) -> "ScenarioSpec":
        if self.beats_every >= self.session:
            raise ValueError(
                f"heartbeat_interval is {self.beats_every:g} s and has to be shorter than "
                f"session_timeout ({self.session:g} s)"
            )
        if self.client == "librdkafka" and self.max_poll_interval < self.session:
            raise ValueError(
                f"max_poll_interval is {self.max_poll_interval:g} s and may not be shorter than "
                f"session_timeout ({self.session:g} s): librdkafka refuses that"
            )
        if self.client != "librdkafka":
            self._possible_for_java()
        return self

    def _possible_for_java(self) -> None:
        if self.static:
            raise ValueError(
                f"client is {self.client}, which has no static members (allowed: static: false)"
            )
        if self.protocol not in {"range", "roundrobin"}:
            raise ValueError(
                f"client is {self.client}, which does not have protocol {self.protocol} "
                "(allowed: range, roundrobin)"
            )


def load_scenario(path: Path) -> ScenarioSpec:
    """Read a scenario. Raises ConfigError that lists every problem as `file:line: key: …`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    root, problems = read_tree(text, {})
    if root is None and not problems:
        raise ConfigError(f"{path} is empty: write at least members:, or see docs/simulate.md")
    if root is not None and not isinstance(root.value, dict):
        keys = ", ".join(ScenarioSpec.model_fields)
        problems.append(Problem(line=root.line, path="", text=f"is no mapping of {keys}"))
    if root is not None and not problems:
        try:
            return ScenarioSpec.model_validate(root.plain())
        except ValidationError as error:
            problems = problems_of(error, root, ScenarioSpec)
    raise ConfigError("\n".join(each.render(str(path)) for each in problems))
