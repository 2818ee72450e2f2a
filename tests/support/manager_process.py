"""A manager in a process of its own, so that a test can kill it in the middle of a change."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path

from tests.support.workshop import Workshop


def spawn_manager(shop: Workshop, wanted: int | None) -> SpawnProcess:
    """It makes so many slots so; its sentences are in a file."""
    log = _log(shop)
    log.unlink(missing_ok=True)
    manager = multiprocessing.get_context("spawn").Process(
        target=_act, args=(str(log), str(shop.config), str(shop.home), shop.group, wanted)
    )
    manager.start()
    return manager


def _log(shop: Workshop) -> Path:
    return shop.home / f"manager-{shop.group}.log"


def _act(log: str, config: str, home: str, group: str, wanted: int | None) -> None:
    from fleet.manager.cycle import Fleet

    sys.stdout = open(log, "w", buffering=1)  # noqa: SIM115, PTH123 - lives as long as the process
    with Fleet.open(Path(config), home=Path(home)) as fleet:
        fleet.apply(group, wanted=wanted, actor=f"manager {os.getpid()}", progress=print)


def await_said(shop: Workshop, moment: Callable[[str], bool], what: str) -> None:
    """Wait until what the manager said so far shows the moment."""
    shop.until(lambda: _log(shop).exists() and moment(_log(shop).read_text()), what)


def end(shop: Workshop, manager: SpawnProcess) -> None:
    """Kill it if it still is there; what it said is a failing test's output."""
    manager.kill()
    manager.join(10)
    print(_log(shop).read_text())


def watch_and_kill(shop: Workshop, manager: SpawnProcess, moment: Callable[[str], bool]) -> None:
    """Kill the manager as soon as its sentences show the moment."""
    try:
        await_said(shop, moment, "the moment to kill")
    finally:
        end(shop, manager)
