"""`python -m benchmarks NAME`: our figures beside the baseline's, and a verdict.

A benchmark's module is imported when it runs: some tell the memory of their own process.
"""

import importlib
from typing import Final

import click

from fleet.cli import run
from fleet.process_exit import exit_process

NAMES: Final = (
    *("roll", "sync-join", "failover", "start", "worker", "observe", "history", "simulate"),
    *("rebalance-table", "clients", "scaling", "packing"),
)


class Benchmarks(click.Group):
    """The command `a-b` is `a_b` of the module `benchmarks.a_b`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Returns all names."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command; None where there is none of that name."""
        if cmd_name not in NAMES:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"benchmarks.{name}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=Benchmarks,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def benchmarks() -> None:
    """Measure a promise of Fleet on this machine.

    Each starts a broker, a stream and workers of its own in a temporary home under $FLEET_HOME,
    prints our figures beside those of the baseline from the same run, and deletes the home.
    Exit code 1 where a goal stated in its help is missed.
    """


if __name__ == "__main__":
    exit_process(run(command=benchmarks, name="python -m benchmarks"))
