"""A process that looks at a cluster again and again, and says what it saw, one JSON line a look.

For a test that pauses the broker meanwhile: what ends this process may not end the test. Imports
of Fleet nothing but what an observer is, so that it also runs beside an older Fleet.
"""

import json
import sys
import threading
import time

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.observe.admin import Observer


def observer(bootstrap: str) -> Observer:
    """One whose looks may take two seconds."""
    config = {"bootstrap.servers": bootstrap}
    return Observer(cluster="t", config=config, clock=SystemClock(), timeout=2.0)


def describe(bootstrap: str, names: list[str]) -> None:
    """Describe them all, as doctor does, until the process ends."""
    own = observer(bootstrap)
    while True:
        own.allowed_operations(names, [])
        time.sleep(0.02)


def main(bootstrap: str, groups: int) -> None:
    """Look until somebody ends it."""
    names = [f"g{number:04d}" for number in range(groups)]
    threading.Thread(target=describe, args=(bootstrap, names), daemon=True).start()
    own = observer(bootstrap)
    while True:
        began = time.monotonic()
        try:
            seen = own.snapshot()
            figures = {"lags": {g: seen.groups[g].lag for g in seen.facts}, "told": seen.problems}
        except FleetError as error:
            figures = {"error": str(error)}
        figures["state"] = own.state(names[0])  # as a plan does while it waits
        print(json.dumps({**figures, "took": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
