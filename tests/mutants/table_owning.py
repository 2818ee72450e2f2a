"""Faults in what a member reads, waits for and commits: the rules that lose or double records."""

from tests.mutants.mutant import faults

_OWNING = ("tests/worker/test_owning.py",)
_POSITIONS = ("tests/worker/test_positions.py",)
_GIVING_UP = ("tests/worker/test_giving_up.py",)
_LEADERLESS = ("tests/worker/test_leaderless.py",)
_EDGES = ("tests/ranges/test_edges.py",)
_ANSWERS = ("tests/ranges/test_answers_received.py",)
_LETTERS = ("tests/worker/test_letters_written.py",)
_FAILURES = ("tests/worker/test_failures.py",)
_FETCHES = ("tests/worker/test_fetch_watch.py",)
_NUDGES = ("tests/worker/test_nudging.py",)

MUTANTS = faults(
    {
        ("fleet/worker/member/membership.py", _OWNING): {
            "member-batch-in-hand-not-told": "self.state.in_hand = [-self._pipeline.busy-]{+False+}",
            "member-lost-partitions-still-ours": """            self._pipeline.interrupt()
        self._pipeline.[-lose-]{+drop+}(tps)""",
            "member-revoke-does-not-wait": "while pipeline.[-touches(tps) or pipeline.-]unsettled & tps:",
            "member-goes-on-before-its-batch-is-committed": "Drain.is_over(busy=busy{+ and self.then is not Drain.GO_ON+},",
            "member-goes-on-whatever-is-asked-since": """self.then = {+self.then or +}then
        return begins""",
            "member-goes-on-and-is-cut-short": "return [-self.then is not Drain.GO_ON and -]now >= self._by",
            "member-asked-again-has-the-first-ones-time": "begins = self.then [-in {None, Drain.GO_ON}-]{+is None+}",
            "member-taken-back-is-proven": "self.then, self._state.phase = Drain.GO_ON, [-self._before-]{+Phase.ACTIVE+}",
        },
        ("fleet/worker/member/membership.py", _GIVING_UP): {
            "member-drains-with-records-in-its-hands": "                if then is not Drain.REJOIN[-:-]{+ and False:+}",
            "member-idles-while-it-gives-up": "if [-self._protocol.rejoins_after-]{+False+} and self._draining",
            "member-keeps-its-group-waiting": "if [-self._protocol.rejoins_after and -]self._draining.then is None:\n                self._begin_last()",
            "member-lets-nobody-go-first": "[-        self._reading.rest(self._clock.monotonic())  # those who take them over go first\n-]        self._protocol.unassign(",
            "member-goes-first-without-what-came": "[-        if tps:\n            self._pipeline.reopen()\n-]        marked, skipped =",
        },
        ("fleet/worker/member/membership.py", ("tests/worker/test_ended_while_joining.py",)): {
            "member-asks-for-offsets-while-it-closes": "if self._done{+ and not partitions+}:  # inside close()",
            "member-joins-though-it-is-to-end": "        [-self._commands.serve(0.0)-]{+pass+}  # whoever was asked to end",
            "member-refuses-what-it-is-given-while-it-closes": "            [-self._protocol.assign(consumer, partitions)\n-]            return\n        tps = sorted(",
        },
        ("fleet/worker/slot/reporting.py", ("tests/worker/test_how_often_reports.py",)): {
            "report-every-batch-in-hand-is-news": "in_hand=report.in_hand[- and first-],",
            "report-no-batch-in-hand-is-news": "in_hand=[-report.in_hand and first-]{+False+},",
            "report-without-the-batch-in-hand": "in_hand=[-self._state is not None and self._state.in_hand-]{+False+},",
        },
        ("fleet/worker/member/member_state.py", ("tests/worker/test_taking_over.py",)): {
            "member-asked-during-a-rejoin-forgets-it": "return before is not Drain.CLOSE{+ and before is not Drain.REJOIN+}",
        },
        ("fleet/worker/member/member_state.py", _OWNING): {
            "member-drain-does-not-wait-for-the-batch": "return [-not busy and -]not (unsettled and in_time)",
        },
        ("fleet/worker/offsets/commit_metadata.py", _OWNING): {
            "member-every-partition-still-ours": "return tuple(each for each in finished if [-owned.holds(each.tp, each.token)-]{+each.token+})",
        },
        ("fleet/worker/slot/membership_setup.py", _OWNING): {
            "member-offset-reset-latest": '"auto.offset.reset": "[-error-]{+latest+}",',
            "member-isolation-ignored": '"isolation.level": [-worker.isolation-]{+"read_uncommitted"+},',
        },
        ("fleet/worker/batch/ranges.py", _OWNING): {
            "member-ends-of-another-isolation": 'if isolation == "[-read_committed-]{+read_uncommitted+}"',
        },
        ("fleet/worker/member/pipeline.py", _OWNING): {
            "pipeline-cut-short-for-ever": "state.unclean [-&=-]{+|=+} hand.cut",
            "pipeline-cut-short-once": "hand.cut = self._state.unclean = True\n            [-self.interrupt()-]{+_ = hand+}",
            "pipeline-commits-over-a-gap-while-busy": """        if self._in_hand is not None or holds:
            {+self._commit_gaps()
            +}return""",
        },
        (
            "fleet/worker/member/pipeline.py",
            (*_OWNING, *_POSITIONS, "tests/worker/test_begun.py"),
        ): {
            "pipeline-begins-without-its-plan": "[-elif self._plan()-]{+else+}:",
        },
        ("fleet/worker/member/pipeline.py", (*_OWNING, "tests/worker/test_ill.py")): {
            "pipeline-void-batch-read-no-more": """        [-self._rewind_onto_ranges(done, again)
        -]return True""",
        },
        ("fleet/worker/member/pipeline.py", (*_OWNING, *_POSITIONS)): {
            "pipeline-retry-for-ever": "if now - hand.since < [-self._patience-]{+0+}:",
        },
        ("fleet/worker/member/losses.py", _FETCHES): {
            "fetch-stall-without-records": "end is not None and end >{+=+} at[tp]",
            "fetch-stall-of-what-was-heard-of": "for tp in sorted(answers.keys()[- & set(late)-]):",
        },
        ("fleet/worker/batch/adaptive_reader.py", ("tests/ranges/test_switch.py",)): {
            "fetch-backlog-of-the-old-topic": "waiting = _cached_waiting(consumer, self.[-_trusted-]{+_inline.positions+}())",
            "fetch-every-topic-made-again": "if known[- and self._first_ids.setdefault(tp.topic, topic_id) != topic_id-]:",
            "fetch-silent-while-paused": "in silent.items()[- if tp not in paused-]}",
            "fetch-made-again-by-its-name": "if [-known and -]self._first_ids.setdefault",
        },
        ("fleet/worker/batch/batches.py", ("tests/worker/test_batches.py",)): {
            "fetch-silent-at-its-end": "return self.position == self.begun[- and not self.end_seen-]",
        },
        ("fleet/worker/batch/ranges.py", _LEADERLESS): {
            "leader-no-offset-is-one": "if offset < [-0-]{+-9999+}:",
        },
        ("fleet/worker/member/losses.py", _LEADERLESS): {
            "leader-back-and-its-loss-not-told": """pipeline.seek(start)  # it was assigned at no position, and paused
            [-self.tell(start)-]{+pass+}""",
        },
        ("fleet/worker/offsets/assigning.py", _LEADERLESS): {
            "leader-end-untold-begins-at-the-start": "untold = [-{**untold, **unended}-]{+untold+}",
        },
        ("fleet/worker/offsets/assigning.py", _POSITIONS): {
            "position-chosen-and-not-committed": "return [-not self.gone and self.committed != self.position-]{+False+}",
        },
        ("fleet/worker/offsets/assigning.py", (*_POSITIONS, *_OWNING)): {
            "position-before-the-log": "position=[-max(-]stored.offset,[- first),-]",
        },
        ("fleet/worker/member/member_state.py", _POSITIONS): {
            "position-drain-does-not-wait-for-its-commit": "return not busy[- and not (unsettled and in_time)-]",
        },
        ("fleet/worker/member/losses.py", ("tests/worker/test_quarantine.py",)): {
            "marks-of-its-own-revision-lifted": 'return [-None if mark.revision == self._revision else -]"this revision tries it"',
            "marks-of-the-log-skipped-without-a-word": "                        [-skipped.add(mark.tp)-]{+pass+}",
            "marks-of-the-log-stay-after-a-commit": "if [-start.committed != mark.offset-]{+False+}:",
        },
        ("fleet/worker/member/membership.py", _NUDGES): {
            "nudge-without-an-end": """        if hurry.count >= MOST or now - hurry.begins >= LONGEST:
            return [-"limit"-]{+None+}""",
            "nudge-while-nothing-moves": "if hurry.still >= STILL{+ * MOST+} and not self._joining()",
            "nudge-after-the-slot-is-lost": "if[- not-] self._ours[-()-]{+ is None+}:",
            "nudge-before-the-change-begins": "_Hurry(why=why, begins=at, next=[-at-]{+0+})",
            "nudge-ends-before-others-have-joined": "hurry.still >= STILL[- and not self._joining()-]",
            "nudge-by-another-thread": """self._nudging) is not None:
            {+nudging.begin(why, at)
            self._subscription.nudge(self.state, self._pipeline.generation)
            +}self._commands.put(""",
            "nudge-while-it-drains": """        if self._draining.then is None:
            [-self._subscription.nudge(self.state, self._pipeline.generation)
            -]self._pipeline.step()
            self._note_active()
        else:
            {+self._subscription.nudge(self.state, self._pipeline.generation)
            +}self._go_on_draining()""",
            "nudge-with-other-topics": """            self._subscribe([-)-]{+self._topics[1:])+}

    def _subscribe(self[-)-]{+, topics=None)+} -> None:
        assigned, revoked, lost = self._callbacks
        self._consumer.subscribe(
            list([-self._topics-]{+self._topics if topics is None else topics+}),""",
        },
        ("fleet/worker/member/protocols.py", _NUDGES): {
            "nudge-in-the-classic-protocol": "heartbeats_on_subscribe = [-False-]{+True+}",
        },
        ("fleet/worker/slot/slot_holder.py", _NUDGES): {
            "nudge-at-a-handover": "if [-not handed and -]not back:",
            "nudge-not-after-a-seen-end": "back = last.holder is None and [-last.clean and -]last",
            "nudge-before-the-taker-has-joined": "elif not _joins(slot) or now - since >= [-TAKER_JOINS-]{+0+}:",
            "nudge-not-after-a-quick-taker": "elif [-not _joins(slot) or -]now - since >= TAKER_JOINS:",
            "nudge-for-a-taker-that-is-gone": "slot.token != token[- or slot.holder is None-]:",
            "nudge-not-after-a-leave": "if before.open - gate.[-open-]{+leaving - before.open+}:",
        },
        ("fleet/kafka_source/tasks.py", _EDGES): {
            "range-read-over-its-end": "(records.offset, (part.wanted.start, part.wanted.end{+ + 1+}))",
            "range-read-from-before-its-start": "(records.offset, ([-part.wanted.start-]{+0+}, part.wanted.end))",
            "range-ended-early": "if after >= left.end{+ - 2+}:",
            "range-last-batch-not-decoded": "before(found, left.end{+ - 1+})",
            "range-start-that-is-gone-is-passed-over": "if left.start > after[- or (left.start < first and not told)-]:",
            "range-aborted-records-are-read": "if part.plain is not None{+ and not part.wanted+}:",
        },
        ("fleet/kafka_source/connections.py", _ANSWERS): {
            "answer-read-from-its-start": "return memoryview(self)[[-start-]{+0+}:]",
            "answer-received-beyond-its-room": "sock.recv_into(view[[-total-]{+0+}:])",
            "answer-before-the-end-is-lost": "return (found, None) if [-found-]{+not found+} else",
        },
        ("fleet/worker/batch/poison_search.py", _LETTERS): {
            "letters-not-awaited": "if [-producer.flush(self._seconds + 5.-]{+0 * producer.poll(+}0):",
            "letters-refused-and-passed-over": "if [-not refused-]{+True+}:",
        },
        ("fleet/worker/batch/executor.py", _FAILURES): {
            "runner-goes-on-with-a-lost-slot": "if why is Why.VOID[- or not self._still_ours()-]:",
            "runner-runs-again-before-it-hears-of-a-loss": "self._rest(running, [-_HEARS-]{+0+})",
            "runner-rests-and-goes-on-with-a-lost-slot": "if running.void[- or not self._still_ours()-]:",
            "runner-spark-failure-is-an-attempt": "elif is_spark_failure(error){+ and not pauses_left+}:",
            "runner-hangs-twice-and-goes-on": "if timeouts > [-1-]{+2+}:",
        },
    },
    judged={
        "pipeline-retry-for-ever": "A commit that may pass by itself is not tried again: the batch is run once more under the same ids, nothing is lost; only a real coordinator's move shows it (tests/worker/test_consumer_life.py, on a broker, over a minute).",
    },
)
