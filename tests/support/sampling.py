"""How many examples a test with drawn inputs tries: all in the long forms, a third of them else."""

import os

from hypothesis import settings

LONG = bool(os.environ.get("FLEET_LONG"))


def examples(most: int) -> settings:
    """So many in the long forms, a third of them else: what is rare is looked for at length."""
    return settings(max_examples=most if LONG else most // 3, deadline=None)
