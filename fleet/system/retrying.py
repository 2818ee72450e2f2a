"""Retrying what may fail for a moment: a build, a download, a server whose port was taken.

Problem: on a busy machine a program may meet another one (a file that is open for a moment, a
mirror that does not answer, a port), and a run of half an hour fails with it. Choice: three
attempts with short pauses, each failure logged with its reason; the last one is raised as it is.
Cost: what fails for good fails 3 s later.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from fleet.errors import FleetError

PAUSES: Final = [0.5, 2.5]
"""Seconds between two attempts; one attempt more than pauses."""

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def retry(
    what: str, attempt: Callable[[], _Result], *, on: type[Exception] = FleetError
) -> _Result:
    """Return what `attempt` returns, called again after each `on`; the last one is raised."""
    for number, pause in enumerate(PAUSES, 1):
        try:
            return attempt()
        except on as error:
            tries = f"attempt {number} of {len(PAUSES) + 1}"
            _log.warning("%s failed (%s), trying again in %g s: %s", what, tries, pause, error)
            time.sleep(pause)
    return attempt()
