"""Messages of a process that a step started, by a file: a line each, and none before it is whole.

Problem: Dagster's own reader of such a file takes for a line whatever stands there, and a message
of more than some KB is written in pieces: where it looks between two of them its thread ends, and
what the process reported is lost, the rows of its tables and the run's plot. Choice: the same file
and the same messages, read up to the last newline. Cost: some lines that Dagster will have itself.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dagster import PipesMessageHandler, PipesMessageReader

_EVERY: Final = 0.05


class WholeLines(PipesMessageReader):
    """For `PipesSubprocessClient(message_reader=…)`."""

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[dict[str, Any]]:
        """Hand the messages over as they come; at the end all that were written are handed over."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "messages")
            path.touch()
            over = threading.Event()
            thread = threading.Thread(
                target=_hand_over, args=(path, handler, over), name="pipes-messages", daemon=True
            )
            thread.start()
            try:
                yield {"path": str(path)}
            finally:
                over.set()
                thread.join()

    def no_messages_debug_text(self) -> str:
        """For Dagster's own sentence."""
        return "Attempted to read messages from a temporary file."


def _hand_over(path: Path, handler: PipesMessageHandler, over: threading.Event) -> None:
    """Until it is over and all is read."""
    rest = b""
    with path.open("rb") as file:
        while True:
            last = over.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                try:
                    handler.handle_message(json.loads(line))
                except Exception:  # noqa: BLE001 - told as Dagster tells it, and the next ones count
                    handler.report_pipes_framework_exception("a message", sys.exc_info())
            if last:
                return
            over.wait(_EVERY)
