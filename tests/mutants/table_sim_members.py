"""Faults in the simulated members: what each protocol costs shows them."""

from tests.mutants.mutant import faults

_PLAYED = ("tests/sim/test_protocols_played.py",)
_KIP_62 = ("tests/sim/test_kip_62_played.py",)
_GIVEN = ("tests/sim/test_client_assignors.py",)
_SIZES = ("tests/benchmarks/test_rebalance_table.py",)
_ROOM = "fleet/sim/scenarios"

MUTANTS = faults(
    {
        ("fleet/sim/assignors.py", _GIVEN): {
            "simulated-client-order-is-by-member-id": (
                "    if one.instance_id is not None and other.instance_id is not None[-:-]{+ and False:+}"
            ),
            "simulated-client-gets-what-another-owns": "for p in share[- if owner.get(p, member_id) == member_id-]",
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
        (f"{_ROOM}/epoch_client.py", _KIP_62): {
            "simulated-client-stuck-and-its-batch-counts": "                self.lose_batch()[-  #-]{+ if False else None  #+} its commit is refused",
        },
        ("benchmarks/rebalance_table.py", _SIZES): {
            "group-sizes-tenth-is-one-of-few": 'return 1 if self.way == "one" else [-max(2, members // 10)-]{+max(1, members // 10)+}',
            "group-sizes-fleet-leaves-one-by-one": '"batched-leave" if fleet [-else-]{+and False else+} "leave"',
            "group-sizes-fleet-restarts-as-others-do": "HANDOVER if fleet [-else-]{+and False else+} AWAY",
            "group-sizes-all-static": "[-self.membership == \"static\"-]{+True+},\n",
            "group-sizes-nobody-drifts": "drifts_at=SETTLED // 2{+ * 0+},",
            "group-sizes-fleet-beats-as-others-do": "return story._replace([-heartbeat_interval=FLEET_HEARTBEAT, -]session_timeout=FLEET_SESSION)",
            "group-sizes-fleet-does-not-nudge": 'if self.protocol == "consumer"[-:-]{+ and False:+}',
            "rebalance-table-forgets-other-sizes": "known = {each.key: each for each in (read_cells(path) if [-path.exists()-]{+False+} else ())}",
            "rebalance-table-keeps-the-old-cell": "known.update((each.key, each) for each in cells[-)-]{+ if each.key not in known)+}",
            "rebalance-table-duration-of-those-that-settled": "all_settled = len(settled) == len([-outcomes-]{+settled+})",
            "rebalance-table-best-for-median": "rebalances=int(quantile(counts, [-0.5-]{+0.1+})),",
            "rebalance-table-takes-any-file": "if lines.fieldnames != [each.name for each in fields(Cell)][-:-]{+ and False:+}",
        },
        (f"{_ROOM}/classic_client.py", _SIZES): {
            "simulated-client-drifts-in-its-ticks-only": "            self._beaten_at -= by{+ * 0+}\n",
        },
        (f"{_ROOM}/classic_client.py", _KIP_62): {
            "simulated-java-0.10.0-heartbeats-in-a-batch": "if self.generation >= 0 and ([-self.has_thread or self.polls-]{+True+}):",
            "simulated-java-0.10.1-heartbeats-by-poll": "if self.generation >= 0 and ([-self.has_thread or -]self.polls):",
            "simulated-java-0.10.0-reads-in-a-batch": "        elif self.has_thread or [-self.polls-]{+True+}:\n",
            "simulated-java-0.10.0-silent-after-a-batch": "if self.state is ClientState.STEADY and not self.has_thread[-:-]{+ and False:+}",
            "simulated-java-0.10.0-rebalance-timeout-of-its-own": "if [-self.has_thread else session-]{+True else session+}",
            "simulated-java-0.10.1-session-is-no-bound": "return [-max(session, self.scenario.max_poll_interval)-]{+self.scenario.max_poll_interval+} if",
            "simulated-java-0.10.0-looks-at-max-poll-interval": "return self.rebalance_timeout if self.has_thread else [-None-]{+self.scenario.max_poll_interval+}",
            "simulated-java-0.10.1-hears-at-once-that-it-left": 'commits."""\n        self.place.tell(self.number, "exceeds max.poll.interval.ms")\n        self.leave()\n{+        self.give_up(self.owned)\n+}        self.member_id',
            "simulated-java-0.10.1-leaves-without-a-word": 'commits."""\n        self.place.tell(self.number, "exceeds max.poll.interval.ms")\n[-        self.leave()\n-]        self.member_id',
            "simulated-java-refused-batch-counts": '(error {code})")\n[-            self.lose_batch()\n-]',
            "simulated-java-batch-of-who-left-counts": "            if self.owned[-:-]{+ and False:+}\n",
            "simulated-java-commit-is-not-sent-again": "        if code in MOVED[-:-]{+ and not self._commits:+}\n            self.later(RETRY_MS, self._commit)",
            "simulated-java-refused-but-keeps-its-partitions": "self.generation < 0 or [-self.state in-]{+self.state not in+} {ClientState.REVOKING,",
            "simulated-java-batch-before-it-has-joined": "if self.state in _JOINS[- or-]{+ and+} self._commits:",
            "simulated-java-first-heartbeat-at-once": "        self._beaten_at = self.place.now{+ - 3_000+}\n        super()",
        },
        (f"{_ROOM}/simulated_client.py", _KIP_62): {
            "simulated-client-shorter-batch-ends-the-longer": "if until <= self.busy_until[-:-]{+ and False:+}",
            "simulated-client-first-batch-ends-both": "if self.place.now == self.busy_until[-:-]{+ or True:+}",
            "simulated-client-leaves-twice": "if self.state is not ClientState.OUT[-:-]{+ or True:+}",
            "simulated-client-batch-counts-twice": "if self._redone_until != self.busy_until[-:-]{+ or True:+}",
        },
        (f"{_ROOM}/simulated_client.py", _PLAYED): {
            "simulated-client-wakes-whenever-due": "return max(0, [-min(found)-]{+at+} - self.place.now)",
            "simulated-client-ticks-are-on-time": "period = tick * 1000[- + LATE_US-]",
            "simulated-client-wakes-once-a-second": "return zip(self._ticks{+[:1]+}, TICK_MS[-, strict=True-])",
        },
    }
)  # fmt: skip
