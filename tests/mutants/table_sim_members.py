"""Faults in the simulated members: what each protocol costs shows them."""

from tests.mutants.mutant import faults

_PLAYED = ("tests/sim/test_protocols_played.py",)
_GIVEN = ("tests/sim/test_client_assignors.py",)
_ROOM = "fleet/sim/scenarios"

MUTANTS = faults(
    {
        ("fleet/sim/assignors/client_side.py", _GIVEN): {
            "simulated-client-order-is-by-member-id": (
                "    if one.instance_id is not None and other.instance_id is not None[-:-]{+ and False:+}"
            ),
            "simulated-client-gets-what-another-owns": "for p in share[- if owner.get(p, member_id) == member_id-]",
        },
        ("fleet/sim/assignors/sticky.py", _GIVEN): {
            "simulated-client-free-ones-lowest-first": (
                "return order + [p for p in [-reversed(range(self.partitions))-]"
                "{+range(self.partitions)+} if"
            ),
            "simulated-client-last-of-a-share-moves": "if p in self.before), share[[-0-]{+-1+}])",
            "simulated-client-oldest-claim-counts": "self.shares[found[[--1-]{+0+}][1]].append(partition)",
            "simulated-client-both-claims-are-believed": "for generation, _ in found}) < len(found)[-:-]{+ and False:+}",
        },
        (f"{_ROOM}/classic_client.py", _PLAYED): {
            "simulated-client-no-second-round": "        if revoked[-:-]{+ and False:+}\n            self.later",
            "simulated-client-cooperative-gives-all-up": "if self.is_cooperative and [-not -]lost:",
            "simulated-client-static-leaves": "if [-self.instance is None and -]self.member_id:",
        },
        (f"{_ROOM}/epoch_client.py", _PLAYED): {
            "simulated-client-static-leaves-for-good": "going = LEFT if self.instance is None else [-AWAY-]{+LEFT+}",
            "simulated-client-stuck-but-heartbeats": "if beat == self._beat[- and self.state is not ClientState.OUT-]:",
            "simulated-client-tells-at-its-next-heartbeat": (
                "self._must_tell = True\n            if not self._in_flight[-:-]{+ and False:+}"
            ),
            "simulated-client-nudge-is-nothing": "and not self._in_flight[-:-]{+ and False:+}\n            self._heartbeat(topics=True)",
        },
        (f"{_ROOM}/simulated_client.py", _PLAYED): {
            "simulated-client-wakes-whenever-due": "return max(0, [-min(found)-]{+at+} - self.place.now)",
            "simulated-client-ticks-are-on-time": "period = tick * 1000[- + LATE_US-]",
            "simulated-client-wakes-once-a-second": "return zip(self._ticks{+[:1]+}, TICK_MS[-, strict=True-])",
        },
    }
)  # fmt: skip
