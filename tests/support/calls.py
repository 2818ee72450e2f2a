"""What a piece of work costs, without a clock: a busy machine counts the same."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(work: Callable[..., object], *args: Any, **named: Any) -> int:
    """How many functions a piece of work calls, generators' steps among them.

    The collector waits: what other tests left calls back where it is cleared away.
    """
    calls = 0

    def count(_frame: FrameType, event: str, _about: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        work(*args, **named)
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return calls
