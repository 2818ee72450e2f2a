"""Changes of a Deployment, and controllers that act in any order on what they heard last, by seed.

Asked of each: no pod goes that nobody asked for, none comes of a template that nobody wants more
of, what was asked for is there in the end, and what is registered for a template is what it is.
"""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from fleet.config.settings import WorkerSettings
from fleet.errors import NoRoom
from fleet.kubernetes.client.object_names import REVISION_ANNOTATION
from fleet.kubernetes.deployment.pod_counts import RegisteredTemplates
from fleet.kubernetes.deployment.pod_status import hash_of, is_gone, is_marked, is_ready
from fleet.kubernetes.deployment.rolling import Rolling
from tests.support.declared import ON_KUBERNETES, group_spec, settings_of
from tests.support.memory_server import MemoryServer
from tests.support.played_controllers import PlayedClock, PlayedControllers, PlayedInformer
from tests.support.pod_yard import NAMES

SEEDS = (*range(5), 129, 173)
"""The last two: a controller that has not heard of a change of `replicas` takes the next numbers
as one more.
"""
MANY = [n for n in range(400) if n not in SEEDS]
CHANGES = [
    "more", "fewer", "roll", "abort", "abort", "refused", "refused", "killed", "misnoted",
    "evicted", "drained", "rolling_batch",
]  # fmt: skip


class Killed(BaseException):
    """The manager is gone: nothing of it runs any more."""


class Registry:
    """What the slot targets keeps of templates."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def templates(self, group: str) -> dict[str, str]:
        return self.kept

    def register_template(self, group: str, template_hash: str, revision: str) -> None:
        self.kept[template_hash] = revision


def revision_of(pod: dict) -> str:
    """That its template was rendered for."""
    return str(pod["metadata"]["annotations"][REVISION_ANNOTATION])


def names_of(pods: list[dict]) -> set[str]:
    return {p["metadata"]["name"] for p in pods}


class Story:
    """One fleet through some changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = MemoryServer()
        self.controllers = PlayedControllers(self.server, self.rng)
        self.controllers.pace = self.rng.choice([0.1, 0.3, 1.0])
        self.controllers.created = self._created
        self.controllers.deleted = self._deleted
        self.clock = PlayedClock(self.controllers)
        self.registry = Registry()
        self.told: list[str] = []
        self.going: set[str] = set()
        """Revisions of which any pod may go."""
        self.coming: set[str] = set()
        """Revisions of which pods may come."""
        self.left: int | None = None
        """Requests until the manager is killed."""
        self.unsaid = False
        """Whether a manager was killed in this change."""
        self.late: set[str] = set()
        """Revisions that it asked for: their pods may come late."""
        self.server.before = self._before
        self.rolling = self.manager()

    def manager(self) -> Rolling:
        """The next one."""
        return Rolling(
            self.server.api(self.clock),
            NAMES,
            pods=PlayedInformer(self.controllers, self.clock),  # type: ignore[arg-type]
            templates=RegisteredTemplates(self.registry, "orders", clock=self.clock),
            clock=self.clock,
        )

    def settings(self, revision: str) -> WorkerSettings:
        place = {**ON_KUBERNETES, "namespace": "ns", "image": f"image-{revision}"}
        return settings_of(group_spec(runtime=place), revision=revision)

    # --- what is watched ----------------------------------------------------------------------

    def _before(self, method: str, kind: str, name: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Killed
        self.controllers.go_on(self.controllers.pace)

    def _created(self, pod: dict) -> None:
        revision = revision_of(pod)
        self.told.append(f"+ {pod['metadata']['name']} of {revision}")
        assert revision in self.coming, f"nobody wants more of {revision}"

    def _deleted(self, pod: dict) -> None:
        revision = revision_of(pod)
        self.told.append(f"- {pod['metadata']['name']} of {revision}")
        assert revision in self.going or is_marked(pod), f"nobody asked {revision}'s pod to go"

    def living(self) -> list[dict]:
        return [p for p in self.controllers._now("Pod").values() if not is_gone(p)]

    def others(self, revision: str) -> list[dict]:
        """Those of another revision that nobody has asked to go."""
        return [p for p in self.living() if revision_of(p) != revision and not is_marked(p)]

    def known(self, revision: str) -> list[dict]:
        """Those whose template is registered: others are a revision of their own to a manager."""
        return [p for p in self.living() if self.registry.kept.get(hash_of(p)) == revision]

    def until(self, done: Callable[[], object], what: str) -> None:
        """While the controllers go on."""
        for _ in range(4000):
            if done():
                return
            self.clock.sleep(0.05)
        raise AssertionError(f"waited in vain for {what}")

    def ready(self) -> None:
        self.until(lambda: all(map(is_ready, self.living())), "all pods to be ready")

    # --- what a manager does ------------------------------------------------------------------

    def start(self, revision: str, count: int) -> None:
        self.told.append(f"start {count} of {revision}")
        self.coming = {revision, *self.late}
        before = len(self.known(revision))
        self.rolling.start(self.settings(revision), count=count)
        made = len(self.known(revision)) - before
        more = self.unsaid and made > count  # what the killed one asked for comes late
        assert more or made == count, f"{made} of {count} started"

    def remove(self, pods: list[dict]) -> None:
        """Exactly these."""
        names = [p["metadata"]["name"] for p in pods]
        self.told.append(f"remove {names}")
        self.until(lambda: names_of(self.rolling.pods()) >= set(names), "its own view of them")
        self.rolling.mark(names)
        self.until(lambda: not self.rolling.settle(), f"{names} to go")

    def evict(self, coming: set[str]) -> None:
        """Somebody drains a node: its pod is recreated, of the same revision."""
        name = self.rng.choice(self.living())["metadata"]["name"]
        self.told.append(f"evicted {name}")
        self.coming, there = coming, len(self.living())
        self.controllers.evict(name)
        self.until(lambda: len(self.living()) >= there, "the evicted pod to be recreated")

    def roll(self, new: str, wanted: int, *, drains: bool = False) -> None:
        """As a manager does: some ahead, and each other one when its successor is there."""
        ahead = self.rng.randint(1, wanted + 1)
        while others := self.others(new):
            short = min(len(others), ahead) + wanted - len(others) - len(self.known(new))
            if short > 0:
                self.start(new, short)
            if drains and self.rng.random() < 0.3:
                self.evict({new, *map(revision_of, others)})
            self.ready()
            self.remove(others[-1:])
        if (short := wanted - len(self.known(new))) > 0:  # the killed one had asked all to go
            self.start(new, short)
        self.remove([])
        if self.unsaid:  # it wanted some of a third revision: one more than wanted may come
            self.controllers.still()
            self.remove(self.living()[wanted:])
        self.rolling.finish_removals()

    def rolling_batch(self, new: str, wanted: int) -> None:
        """All of the new revision beside the old ones, one too many of them; then those that leave,
        of both at once, and what is left of the old ones.
        """
        self.start(new, wanted + 1)
        self.ready()
        others = self.others(new)
        spare = self.rng.randint(0, 1)
        self.coming = set()
        self.remove([self.known(new)[0], *others[spare:]])
        self.remove(others[:spare])
        self.rolling.finish_removals()

    def give_up(self, new: str) -> None:
        """The new revision is nobody's any more."""
        self.told.append(f"give up {new}")
        self.going, self.coming = {new}, set()
        self.rolling.finish_removals(give_up=lambda _: True)

    def check(self, revision: str, count: int) -> None:
        """So many of it, none of another, at rest, and the template known by its name."""
        self.controllers.still()
        have = self.living()
        kinds = {revision_of(p) for p in have}
        assert (kinds, len(have)) == ({revision}, count)
        _, shape = self.rolling.look()
        assert shape is not None
        assert (shape.frozen, shape.replicas, shape.stuck) == (False, count, None)
        assert shape.settled
        assert shape.current is not None
        assert shape.current.revision == revision
        for pod in have:
            assert self.registry.kept[hash_of(pod)] == revision
        self.going, self.late, self.unsaid = set(), set(), False


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.long) for n in MANY)])
def test_changes_of_a_deployment(seed: int) -> None:
    story = Story(seed)
    try:
        play(story)
    except AssertionError as error:
        lines = "\n".join(story.told[-40:])
        raise AssertionError(f"{error}\n{lines}\n{story.rolling.look()[1]}") from error


def play(story: Story) -> None:
    rng = story.rng
    have, now = rng.randint(1, 4), "r0"
    story.start(now, have)
    story.ready()
    story.check(now, have)
    for number in range(1, rng.randint(3, 6)):
        what = rng.choice(CHANGES)
        new = f"r{number}"
        story.controllers.lingers = rng.random() < 0.3
        story.told.append(f"--- {what}: {have} of {now}")
        story.coming = set()
        if what == "more":
            more = rng.randint(1, 3)
            story.start(now, more)
            have += more
        elif what == "fewer" and have > 1:
            fewer = rng.randint(1, have - 1)
            story.ready()
            story.remove(story.living()[:fewer])
            story.rolling.finish_removals()
            have -= fewer
        elif what in {"roll", "misnoted", "drained"}:
            if what == "misnoted":
                story.controllers.misnote()
            story.roll(new, have, drains=what == "drained")
            now = new
        elif what == "rolling_batch":
            story.rolling_batch(new, have)
            now = new
        elif what == "evicted":
            story.evict({now})
        elif what == "abort":
            for _ in range(rng.randint(1, 2)):
                story.start(new, rng.randint(1, 3))
                if rng.random() < 0.5:
                    story.ready()
            if rng.random() < 0.5:
                story.remove(story.others(now))
                story.rolling.finish_removals()
            else:
                story.give_up(new)
        elif what == "refused":
            story.controllers.lingers = False
            story.controllers.still()
            story.controllers.quota = have + rng.randint(0, 1)
            with suppress(NoRoom):
                story.start(new, 3)
            story.give_up(new)
            story.controllers.still()  # at rest: until then it may still try what it wanted
            story.controllers.quota = 1_000
        elif what == "killed":
            story.left = rng.randint(1, 60)
            with suppress(Killed):
                story.roll(new, have)
            story.left = None
            story.told.append("killed")
            story.unsaid, story.late = True, {new}
            story.rolling = story.manager()
            new = rng.choice([new, f"{new}b"])
            story.roll(new, have)
            now = new
        story.check(now, have)
