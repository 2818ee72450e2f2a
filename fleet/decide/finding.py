"""A yes or no that always says why."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Unpacks as (ok, sentence) and is true where ok is: `if finding:` means what it reads."""

    ok: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.ok
