"""Whether a command that runs for months should begin anew, for what its login is now.

Problem: passwords and certificates are renewed under a running process, and Kafka's clients read
them once, when they are made. Choice: where brokers refuse them, what stands in their files is
held against what stood there; other contents, and a fleet.yaml that opens with them, are the sign
to open it anew. Cost: a login that is still good is not changed before brokers refuse it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleet.commands.invocation import Invocation

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


class RenewedLogin:
    """Of one opened fleet; make it right after that, before its clients."""

    def __init__(self, invocation: Invocation, fleet: "Fleet") -> None:
        from fleet.kafka_source.login import references
        from fleet.worker.login_files import LoginFiles

        self._invocation = invocation
        self._files = LoginFiles(references(fleet.spec.cluster, fleet.bootstrap))

    def ready(self, say: Callable[[str], None]) -> bool:
        """Whether to begin anew, to be asked once something failed; says for which files."""
        replaced = self._files.replaced()
        if not replaced or self._invocation.refusal() is not None:  # they may be just being written
            return False
        say(f"begins anew with what is in {' and '.join(replaced)} now")
        return True
