"""A process that looks at a cluster again and again, and says what it saw, one JSON line a look.

For a test that pauses the broker meanwhile: what ends this process may not end the test. Imports
of Fleet nothing but what an observer is, so that it also runs beside an older Fleet.
"""

import json
import sys
import time

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.observe.admin import Observer


def main(bootstrap: str, groups: int) -> None:
    """Look until somebody ends it; a look may take two seconds."""
    names = [f"g{number:04d}" for number in range(groups)]
    observer = Observer(
        cluster="t", config={"bootstrap.servers": bootstrap}, clock=SystemClock(), timeout=2.0
    )
    while True:
        began = time.monotonic()
        try:
            seen = observer.snapshot()
            told = {"lags": {g: seen.groups[g].lag for g in seen.facts}, "told": seen.problems}
        except FleetError as error:
            told = {"error": str(error)}
        told["state"] = observer.state(names[0])  # as a plan does while it waits
        told["allowed"] = len(observer.allowed(names, []))  # as doctor does
        print(json.dumps({**told, "took": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
