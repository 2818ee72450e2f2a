"""Defines the exception tree. A class exists only if some code catches it.

    FleetError                 a message for the user; exit 1
    ├── ConfigError            fleet.yaml or an option is wrong; exit 2, nothing was started
    │   └── CodeElsewhere      a folder of worker.python_path is not on this machine
    ├── Refused                a change may not start now
    ├── Unreachable            a broker, the Spark server or the store does not answer
    │   └── Damaged            stored data cannot be read
    ├── NoRoom                 the runtime starts no more workers: a quota, an admission webhook
    ├── LostLease              another actor owns the group's lease now
    ├── SchemaTooNew           a newer release wrote the stored data
    └── RolledBack             the canary failed, and Fleet restored the old revision

The message names the thing, its value, what is allowed and the next step. The original error is
chained (`raise ... from error`); only `--verbose` shows it.
"""


class FleetError(Exception):
    """Reports an error to the user; its message is complete."""

    exit_code = 1


class ConfigError(FleetError):
    """Reports a wrong fleet.yaml or option; nothing was started."""

    exit_code = 2


class CodeElsewhere(ConfigError):
    """Reports code that is only on the machine that published the revision."""


class Refused(FleetError):
    """Reports that a change may not start now; the message says why and what to do."""

    exit_code = 3


class Unreachable(FleetError):
    """Reports a service that did not answer in time."""


class Damaged(Unreachable):
    """Reports stored data that cannot be read until a person repairs it."""


class NoRoom(FleetError):
    """Reports that the runtime starts no more workers; Fleet stops asking for them."""

    def __init__(self, sentence: str, *, started: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.started = started
        """Names of the workers that did start before."""


class LostLease(FleetError):
    """Reports that another actor owns the group's lease; stop acting at once."""

    exit_code = 3


class SchemaTooNew(FleetError):
    """Reports stored data of a newer schema than this release reads."""


class RolledBack(FleetError):
    """Reports that the canary failed, and that Fleet restored the old revision."""
