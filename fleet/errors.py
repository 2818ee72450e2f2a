"""The exception tree. A class exists only where somebody catches it.

    FleetError                 a sentence for the user; exit 1
    ├── ConfigError            fleet.yaml or an option is wrong; exit 2, nothing was started
    │   └── CodeElsewhere      a folder of worker.python_path is not on this machine
    ├── Refused                a change may not start now, with the reason in words; exit 3
    ├── Unreachable            a broker, the Spark server or the store does not answer
    │   └── Damaged            what it stores cannot be read
    ├── NoRoom                 no more workers can be had: a quota, an admission webhook
    ├── LostLease              another process changes this group now; exit 3
    ├── SchemaTooNew           stored state was written by a newer version
    └── RolledBack             the canary failed, and its change was taken back

The message names the thing, its value, what is allowed and what to do next; the original
error is chained (`raise ... from error`) and never shown unless `--verbose` is given.
"""


class FleetError(Exception):
    """Something the user has to know about: the message is the whole story."""

    exit_code = 1


class ConfigError(FleetError):
    """The specification or an option is wrong; nothing was started."""

    exit_code = 2


class CodeElsewhere(ConfigError):
    """The code that fleet.yaml names is not here, but where the revision was published from."""


class Refused(FleetError):
    """A change may not start now; the message says why and what would lift it."""

    exit_code = 3


class Unreachable(FleetError):
    """A service did not answer within its bounded wait."""


class Damaged(Unreachable):
    """What is stored cannot be read, and will not be before somebody mends it."""


class NoRoom(FleetError):
    """The place where workers run takes no more of them, and is not asked for them any more."""

    def __init__(self, sentence: str, *, made: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.made = made
        """Names of those that it did take before."""


class LostLease(FleetError):
    """The group's lease passed to another process; stop acting at once."""

    exit_code = 3


class SchemaTooNew(FleetError):
    """Stored state carries a newer schema version than this program knows."""


class RolledBack(FleetError):
    """The canary failed and what it had changed was taken back."""
