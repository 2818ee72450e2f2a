"""`python -m fleet.worker --settings FILE --name NAME`: what the local runtime starts.

`python -m fleet.worker --fork-server` forks such workers (`fleet.worker.slot.fork_server`).
"""

import argparse
import sys
from pathlib import Path

from fleet.collector import gc_disabled

with gc_disabled():
    from fleet.config.settings import LEFT_OUT, read_settings
    from fleet.errors import SchemaTooNew
    from fleet.process_exit import exit_process
    from fleet.system.home import fleet_home


def main() -> int:
    """Parses the arguments, loads the settings and runs the worker; returns the exit code."""
    if sys.argv[1:2] == ["--fork-server"]:
        with gc_disabled():
            from fleet.worker.slot.fork_server import serve  # noqa: PLC0415

        if not serve():
            return 0
    parser = argparse.ArgumentParser(prog="python -m fleet.worker", description=__doc__)
    parser.add_argument("--settings", required=True, type=Path, help="a revision's settings file")
    parser.add_argument("--name", required=True, help="this worker's name, unique and never reused")
    options = parser.parse_args()
    try:
        text = options.settings.read_text(encoding="utf-8")
        settings, left_out = read_settings(text)
    except (OSError, ValueError, SchemaTooNew) as error:
        sys.stderr.write(f"cannot read the settings {options.settings}: {error}\n")
        return 2
    if left_out:
        sys.stderr.write(f"{LEFT_OUT}: {', '.join(left_out)}\n")
    with gc_disabled():  # only after the settings are known to be valid
        from fleet.worker.slot.process import run  # noqa: PLC0415

    return run(settings, name=options.name, home=fleet_home())


if __name__ == "__main__":
    exit_process(main())
