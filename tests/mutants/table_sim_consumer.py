"""Faults in the model of KIP-848 groups: Kafka's own coordinator beside it has to tell them."""

from tests.mutants.mutant import faults

_STORIES = ("tests/conformance/test_consumer_groups.py::test_stories",)
_ROOM = "fleet/sim/coordinator"

MUTANTS = faults(
    {
        (f"{_ROOM}/consumer_heartbeat.py", _STORIES): {
            "consumer-takes-what-another-owns": "if self.epoch_of(topic, each) [-==-]{+>=+} -1 or each in mine",
            "consumer-silence-is-consent": "if self.reported is None:\n            return [-True-]{+False+}",
            "consumer-keeps-unsubscribed-topics": "wanted = self.target.get(topic, _NONE)[- if self._subscribed(topic) else _NONE-]",
            "consumer-waits-for-what-it-gives-up": "if self.epoch_of(topic, each) == -1[- or each in mine-]",
            "consumer-unrevoked-takes-the-new-epoch": "state = moved(member.state, MemberAction.REVOKE, ConsumerMemberState.UNREVOKED)\n            return member.reached([-epoch-]{+self.epoch+}, state=state",
            "consumer-old-epochs-of-kept-partitions": "dict.fromkeys(partitions, [-self.epoch-]{+member.epoch+})",
            "consumer-lost-answer-of-anything": "if not lost_an_answer or owned is None[- or not _is_within(owned, member)-]:",
            "consumer-lost-answer-never": "lost_an_answer = told < member.epoch and told == member.previous_epoch{+ and told < 0+}",
            "consumer-heir-beside-the-living": "if last.epoch [-!=-]{+<+} AWAY:",
            "consumer-no-session-timer": "[-self.shard.expect_heartbeat(self.group.id, self.asked.member_id)-]",
            "consumer-rebalance-timer-stays": "self.shard.expect_no_revocation(group.id, [-new-]{+group+}.id)",
            "consumer-full-request-told-nothing": "if asked.member_epoch == JOINING or [-told_all or -]given",
            "consumer-static-counted-twice": "is_new = told.id not in group.members[- and told.instance not in group.statics-]",
            "consumer-known-regex-waits": "bumps = renamed[- or regex is RegexChange.KNOWN-]",
            "consumer-group-full-for-its-members": "if len(group.members) >= most[- and asked.member_id not in group.members-]:",
            "consumer-interval-one-too-long": "now >[-=-] group.computed_ms + interval_ms",
            "consumer-heir-starts-from-nothing": "target = group.targets.get([-inherited or -]new.id, HashOrder())",
            "consumer-assignor-of-the-fewest": "return [-max-]{+min+}(wanted, key",
            "consumer-regexes-at-ten-seconds": "if now <[-=-] last_ms + _AT_MOST_EVERY_MS:",
            "consumer-new-topics-do-not-count": "or (0 if first is None else first.version) < newest_topics{+ - 9+}",
        },


        (f"{_ROOM}/consumer_shard.py", _STORIES): {
            "consumer-late-rebalance-timer-fences": "if expiry.epoch is not None and member.epoch [-!=-]{+>+} expiry.epoch:",
            "consumer-away-keeps-epochs": "each[partition] = [-0-]{+partitions[partition]+}",
            "consumer-regex-survives-its-last-user": "if group.regexes.get(regex, 0) == count{+ + 1+}:",
        },

        (f"{_ROOM}/consumer_coordinator.py", _STORIES): {
            "consumer-no-rebalance-timer-after-failover": "if member.state is ConsumerMemberState.[-UNREVOKED-]{+UNKNOWN+}:",
            "consumer-deleted-topics-unnoticed": "names = {old.by_id[each].name for each in old.by_id.keys() - new.by_id.keys(){+ - old.by_id.keys()+}}",
        },

        ("fleet/sim/assignors.py", _STORIES): {
            "consumer-extra-for-the-first": "if may_have_extra and quota > 0[- and later > extras-]:",
            "consumer-no-balance": "if ladder.spread <= [-1-]{+2+}:",
            "consumer-sparse-topics-first": "return [---]self.given.partitions[topic] / members",
            "consumer-range-by-member-id": "return (member.instance is None, member.id[- if member.instance is None else member.instance-])",
        },


        ("fleet/sim/hashing.py", _STORIES): {
            "consumer-newest-key-last": "= lambda key: _spread(key)[- & mask-]  # noqa: E731",
            "consumer-partitions-in-their-order": "bucket = mask.__[-and-]{+or+}__",
            "consumer-table-grows-late": "elif len(self) > int(self.capacity * _LOAD){+ + 1+}:",
        },
        ("fleet/sim/hashing.py", ("tests/sim/test_hash_order.py",)): {
            "consumer-puts-leave-the-order": "if (size := len(self)) > known:[-\n            self._order = None-]",
            "consumer-puts-leave-the-size": "while size * [-4-]{+2+} > self.capacity * 3:",
        },
    }
)  # fmt: skip
