"""What a holder works with, and a standby before it: the parts of one worker's process."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel

from fleet.clock import Clock
from fleet.config.references import refers
from fleet.config.settings import WorkerSettings
from fleet.errors import Unreachable
from fleet.slots.store import Store
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.canary_note import CanaryNote
from fleet.worker.events import Events
from fleet.worker.member.protocols import MemberProtocol
from fleet.worker.slot.leave_completion import Leave, LeaveCompleter, Takeover
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotWatcher

# What a worker's settings know as secret: to be blotted out of what a job or a library says.


_SECRET: Final = re.compile(r"(password|secret|token)\w*_(env|file)$")
_IN_URL: Final = (
    re.compile(r"://[^:/@\s]*:([^@\s]+)@"),  # of several addresses each one's
    re.compile(r"://[^:/@\s]*:(\S+)@"),  # a password that holds @ itself
)


def known_secrets(settings: WorkerSettings, environ: Mapping[str, str]) -> frozenset[str]:
    """Of the login, of `worker.env` what is looked up in the environment, and Spark's token.

    environ: the worker's, with `worker.env` in it.
    """
    return frozenset(_found(settings, environ))


def _found(settings: WorkerSettings, environ: Mapping[str, str]) -> Iterator[str]:
    yield from _of_login(settings.cluster.security, environ)
    worker = settings.group.worker
    for key, text in worker.env.items() if worker is not None else ():
        if refers(text) and key in environ:
            yield environ[key]
            found = [each for pattern in _IN_URL for each in pattern.findall(environ[key])]
            yield from (*found, *map(unquote, found))
    yield environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN", "")


def _of_login(section: BaseModel, environ: Mapping[str, str]) -> Iterator[str]:
    """What keys such as password_env and client_secret_file refer to."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _of_login(value, environ)
        elif isinstance(value, str) and (match := _SECRET.search(name)) is not None:
            if match[2] == "env":
                yield environ.get(value, "")
            else:
                with contextlib.suppress(OSError, UnicodeDecodeError):  # whoever connects says so
                    yield Path(value).expanduser().read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTools:
    """Made once per process."""

    settings: WorkerSettings
    name: str
    store: Store
    watcher: SlotWatcher
    completer: LeaveCompleter
    leave: Leave
    takeover: Takeover
    protocol: MemberProtocol
    runner: BatchRunner
    reporter: Reporter
    canary: CanaryNote
    stop: threading.Event
    clock: Clock
    events: Events
    columnar: Columnar | None = None

    @property
    def is_static(self) -> bool:
        """Whether our members have instance ids (KIP-345)."""
        worker = self.settings.group.worker
        return worker is not None and worker.membership == "static"

    def see(self) -> bool:
        """Look at the store, and end a leave that nobody else ends; True where it was read.

        A silent store is waited for.
        """
        watcher = self.watcher
        try:
            read = watcher.look()
            if watcher.gate.leaving and self.completer.step(
                watcher.gate, watcher.slots, watcher.dead()
            ):
                watcher.forget()
        except Unreachable as error:
            self.events.log_rarely(str(error))
            return False
        return read
