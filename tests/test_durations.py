"""No duration is a difference of wall times: somebody may set a machine's time by an hour.

Wall time stamps what people and other machines read. What is added to it, subtracted from it or
compared with it is found in the source; where that cannot be otherwise it is named here, and why.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("fleet", "assets", "k8s", "benchmarks")

STAMPS = "stored stamps of records, runs or files, of other machines or other days"
ALLOWED = {
    "fleet/dagster/history_assets.py": STAMPS,
    "fleet/dagster/reconcile_schedule.py": f"{STAMPS}; a run that ends in the future holds nobody",
    "fleet/dagster/storm_events.py": STAMPS,
    "fleet/act/steps/membership.py": "`open_at` of the targets: the only shared moment",
    "benchmarks/worker.py": STAMPS,
    "fleet/commands/change/batches.py": STAMPS,
    "fleet/commands/operate/history.py": "an age, told to people",
    "fleet/manager/past.py": STAMPS,
    "fleet/commands/groups/group_status.py": STAMPS,
    "fleet/commands/ui.py": STAMPS,
    "fleet/history/retention.py": STAMPS,
    "fleet/history/tables.py": STAMPS,
    "fleet/kafka_source/broker_settings.py": "whether the clock was set back since the last asking",
    "fleet/kafka_source/login.py": "signers, RFC 7519 and librdkafka say when a token expires",
    "fleet/log/readers/log_view.py": STAMPS,
    "fleet/manager/cycle.py": "until when a person holds a number of slots; stamps of records",
    "fleet/kubernetes/leases/lease_backend.py": "which report nobody renews",
    "fleet/worker/program/membership.py": "`open_at`, once; the wait itself is monotonic",
    "fleet/worker/member/membership.py": "`open_at`, once; the wait itself is monotonic",
    "fleet/sinks/parquet.py": STAMPS,
    "fleet/worker/slot/slot_owner.py": "`open_at`, once, as the members that wait; its bound",
}


def _is_wall(node: ast.AST) -> bool:
    """`….now()` (of a clock or a datetime) or `time.time()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of = node.func.value
    return node.func.attr == "now" or (
        node.func.attr == "time" and isinstance(of, ast.Name) and of.id == "time"
    )


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _arithmetic(tree: ast.AST) -> Iterator[str]:
    """Every sum, difference or comparison with a wall time, or with a name that was given one in
    the same function or the same class.
    """
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.ClassDef):
            continue
        inner = list(ast.walk(scope))
        named = {
            ast.unparse(target)
            for node in inner
            if isinstance(node, ast.Assign)
            for target, value in _pairs(node)
            if _is_wall(value)
            and (isinstance(scope, ast.FunctionDef) or "self." in ast.unparse(target))
        }

        def wall(node: ast.expr, named: set[str] = named) -> bool:
            return _is_wall(node) or ast.unparse(node) in named

        for node in inner:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                operands = [node.left, node.right]
            elif isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
            else:
                continue
            if any(wall(each) for each in operands):
                yield f"{node.lineno}: {ast.unparse(node)}"


def _found() -> dict[str, list[str]]:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if ".now()" not in text and "time.time()" not in text:
                continue
            lines = sorted(set(_arithmetic(ast.parse(text))))
            if lines:
                found[str(path.relative_to(ROOT))] = lines
    return found


def test_durations_are_monotonic():
    """What is found and not allowed is to be measured on the monotonic clock."""
    found = _found()
    assert {file: lines for file, lines in found.items() if file not in ALLOWED} == {}
    assert sorted(set(ALLOWED) - found.keys()) == [], "nothing is found there any more"


def test_it_is_found():
    """In one expression, by a name, and by a field."""
    source = """
class Waits:
    def begin(self, clock):
        self.began = clock.now()
        deadline = clock.monotonic() + 5
        return deadline

    def over(self, clock):
        return clock.monotonic() - self.began > 5

    def by_name(self, clock):
        now = clock.now()
        return now >= self.next_at
"""
    assert len(set(_arithmetic(ast.parse(source)))) == 2
