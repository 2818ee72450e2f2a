"""`python -m fleet.worker --settings FILE --name NAME`: what the local runtime starts."""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from fleet.home import fleet_home
from fleet.settings import WorkerSettings


def main() -> int:
    """Parse, load, run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fleet.worker", description=__doc__)
    parser.add_argument("--settings", required=True, type=Path, help="a revision's settings file")
    parser.add_argument("--name", required=True, help="this worker's name, unique and never reused")
    options = parser.parse_args()
    try:
        text = options.settings.read_text(encoding="utf-8")
        settings = WorkerSettings.model_validate_json(text)
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"cannot read the settings {options.settings}: {error}\n")
        return 2
    from fleet.worker.process import run  # noqa: PLC0415 - only once the settings are known good

    return run(settings, name=options.name, home=fleet_home())


if __name__ == "__main__":
    sys.exit(main())
