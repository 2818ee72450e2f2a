"""Every run of a state, however many there are.

Problem: of a long queue a limit shows the newest only, so a group whose run waits behind it looks
idle, and a dead run that others came after is never ended. Choice: page by page, oldest first, so
that what begins meanwhile is on the last page. Cost: a page of 500 is a query, and each of its runs
is read whole.
"""

from collections.abc import Collection, Iterator

from dagster import DagsterInstance, DagsterRunStatus, RunRecord, RunsFilter

PAGE = 500


def all_runs(
    instance: DagsterInstance, statuses: Collection[DagsterRunStatus]
) -> Iterator[RunRecord]:
    """The runs that are in one of these states when their page is read, oldest first."""
    filters = RunsFilter(statuses=list(statuses))
    last: str | None = None
    while True:
        page = instance.get_run_records(filters, limit=PAGE, cursor=last, ascending=True)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].dagster_run.run_id
