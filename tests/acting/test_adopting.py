"""Other people's Deployment is scaled: whose members leave, and whose never [18]."""

from collections.abc import Sequence

from fleet.act.lease import ChangeLease
from fleet.act.steps.adopting import JOIN_SECONDS, Adopting
from fleet.decide.adopted import Adopted
from fleet.model import GroupSnapshot, Member, StepKind
from tests.support.plans import step_of
from tests.support.seen_groups import group_seen, member_seen

PODS = {"pod-a": "10.0.0.1", "pod-b": "10.0.0.2", "pod-c": "10.0.0.3"}


def member(name: str, address: str, *, static: bool = True) -> Member:
    return member_seen(f"m-{name}", instance_id=name if static else None, host=f"/{address}")


class Place:
    """Three pods; the last one goes, or one comes."""

    def __init__(self, here) -> None:
        self.here = here
        self.pods = dict(PODS)
        self.members = [member(pod, address) for pod, address in PODS.items()]
        self.left: list[tuple[str | None, str]] = []
        self.refusal: str | None = None

    def adopted(self, _: str) -> Adopted:
        """As the cluster tells it."""
        return Adopted(
            name="app", replicas=len(self.pods), ready=len(self.pods),
            addresses=dict(self.pods), one_by_one=True,
        )  # fmt: skip

    def scale(self, group: str, count: int) -> Adopted:
        """The last ones go."""
        for name in list(self.pods)[count:]:
            del self.pods[name]
        return self.adopted(group)

    def look(self, group: str) -> GroupSnapshot:
        """As the coordinator tells it."""
        return group_seen(group, members=self.members)

    def leave(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        self.left += members
        return self.refusal

    def perform(self, kind: StepKind) -> tuple[str, ...]:
        """One step, to `wanted` 1 (see Scene.begin)."""
        made = step_of(kind, ())
        adopting = Adopting(
            adopted=self.adopted, scale=self.scale, read=self.look, leave=self.leave,
            clock=self.here.clock,
        )  # fmt: skip
        self.change = self.here.store.change("orders") or self.here.begin(made)
        with ChangeLease(self.here.store, self.change, lease=1e6) as lease:
            told = adopting.perform(made, lease)
            self.change = lease.change
            return told


def test_static_members_of_pods_that_are_gone_leave(scene):
    """In one request, by both ids; not who lives, is elsewhere, or is dynamic and closes itself."""
    place = Place(scene())
    dynamic = member("pod-c", "10.0.0.3", static=False)
    place.members += [member("stranger", "10.9.9.9"), dynamic]
    told = place.perform(StepKind.LEAVE)
    assert place.left == [("pod-b", "m-pod-b"), ("pod-c", "m-pod-c")]
    assert told == ("one request removed 2 static members of deleted pods",)


def test_who_was_there_is_remembered_before_a_pod_stops(scene):
    """By the next actor too: after the stop nobody could tell."""
    place = Place(scene())
    scale = place.scale

    def dies(group: str, count: int) -> Adopted:
        scale(group, count)
        raise KeyboardInterrupt

    place.scale = dies
    try:
        place.perform(StepKind.LEAVE)
    except KeyboardInterrupt:
        place.scale = scale
    assert place.left == []
    place.perform(StepKind.LEAVE)
    assert place.left == [("pod-b", "m-pod-b"), ("pod-c", "m-pod-c")]


def test_a_ready_pod_is_awaited_until_it_is_a_member(scene):
    """What its join costs is the step's; one that never joins is told."""
    place = Place(scene())
    place.pods = {"pod-a": "10.0.0.1"}
    late, place.members = place.members[:1], []
    clock = place.here.clock
    began = clock.now()

    def joins() -> None:
        if clock.now() - began >= 20:
            place.members = late

    clock.turn = joins
    assert place.perform(StepKind.OPEN) == ()
    assert 20 <= clock.now() - began < JOIN_SECONDS


def test_two_pods_are_awaited_both(scene):
    """The first to join is not enough."""
    place = Place(scene())
    place.scale = lambda group, count: place.adopted(group)
    place.members = place.members[:1]
    began = place.here.clock.now()
    assert place.perform(StepKind.OPEN) == ("2 pods did not join within 60 s",)
    assert place.here.clock.now() - began >= JOIN_SECONDS
