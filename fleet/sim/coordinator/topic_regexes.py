r"""Regular expressions that the coordinator resolves for its members (RE2/J, whole names).

Problem: brokers match with RE2/J, whose syntax is not Python's. Choice: Python's `re` for what
both know, and a refusal of what RE2 leaves out: looking around, back references, atomic and
possessive parts, conditions, comments. Cost: not modelled is the syntax that only RE2 has
(`\pN`, `\C`, `\Q..\E`, `[[:alpha:]]`, `(?U)`): it is refused here and taken there.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fleet.sim.coordinator.request_refusals import invalid_regex

_ONLY_PYTHONS: Final = re.compile(
    r"(?:^|[^\\])(?:\\\\)*"
    r"(?:\(\?(?:[=!>#(]|<[=!]|P=)|\\[1-9]|[*+?}]\+)"
)
_ONLY_RE2S: Final = re.compile(r"(?:^|[^\\])(?:\\\\)*(?:\\[pPCQEz]|\[\[:|\(\?[imsU-]*U)")
_KNOWN: Final = 4096


@lru_cache(maxsize=_KNOWN)
def compiled(regex: str) -> re.Pattern[str]:
    """The expression.

    Raises RequestRefused (INVALID_REGULAR_EXPRESSION) where RE2 has none like it.
    """
    for other in (_ONLY_PYTHONS, _ONLY_RE2S):
        found = other.search(regex)
        if found is not None:
            raise invalid_regex(regex, f"{found[0]} is not modelled or no part of RE2")
    try:
        return re.compile(regex)
    except re.error as error:
        raise invalid_regex(regex, str(error)) from error


def matching(regex: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the expression matches as a whole, sorted."""
    pattern = compiled(regex)
    return tuple(sorted(name for name in names if pattern.fullmatch(name)))
