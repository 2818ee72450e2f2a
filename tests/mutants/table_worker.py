"""Faults in what a worker reads, runs and commits."""

from tests.mutants.mutant import faults

_PIPELINE = ("tests/worker/test_commit_metadata.py",)
_BATCHES = ("tests/worker/test_batches.py",)
_FORKS = ("tests/runtime/test_fork_servers.py",)
_COLUMNAR = ("tests/ranges/test_columnar.py",)
_CULPRITS = ("tests/worker/test_poison_search.py",)

MUTANTS = faults(
    {
        # --- commits and positions
        ("fleet/worker/offsets/commit_metadata.py", _PIPELINE): {
            "worker-every-partition-still-ours": "return [-self._tokens.get(tp) == token-]{+tp in self._tokens+}",
            "worker-commit-under-another-member": "if member_then is not None and member_now [-!= member_then-]{+is None+}:",
            "worker-token-given-twice": """        self._last [-+=-]{+= len(self._tokens) ++} 1
        self._tokens[tp] = self._last""",
            "worker-plan-of-another-version-believed": 'return plan if isinstance(plan, dict) [-and plan.get("v") == 1 -]else {}',
        },
        ("fleet/worker/member/protocols.py", ("tests/worker/test_consumer_protocol.py",)): {
            "commit-failed-login-ends-the-worker": "-187, -180, -166[-, -169-], -181}",
        },
        ("fleet/worker/slot/membership_setup.py", ("tests/worker/test_turns.py",)): {
            "reading-one-partition-for-long": '"max.partition.fetch.bytes": [-65536-]{+1048576+},',
        },
        # --- inline batches
        ("fleet/worker/batch/batches.py", _BATCHES): {
            "batches-of-a-trickle-without-rest": "[-        self.rest(self._clock.monotonic())\n-]        self._last_took",
            "batches-hurries-a-slow-job": "quick = [-seconds * max(1.0, self._count / max(1, records)) <= LAST * self.max_wait-]{+bool(seconds < 1e9 or records)+}",
            "batches-hurries-as-many-records-as-there-are": "seconds * [-max(1.0, self._count / max(1, records))-]{+1.0+} <=",
            "batches-hurries-what-it-knows-nothing-of": "self._last_took = ([-math.inf-]{+0.0+}, 0)",
            "batches-refetched-records-kept": "known ={+ 0 if not part.offsets else+} bisect_left(offsets, part.[-position-]{+start+})",
            "batches-replay-cut-at-position": "end = part.position[- if part.replay_to is None else part.replay_to-]",
            "batches-replay-does-not-go-alone": "return self._cut([-replaying-]{+self._parts+}, now)",
            "batches-gap-with-records-waiting": "if part.end_seen and [-not waiting and -]part.position > part.start:",
            "batches-small-one-closed-while-busy": "if not self.full and [-(busy or not self._worth_it(now))-]{+not self._worth_it(now)+}:",
            "batches-stream-waits-like-a-trickle": "[-self._count >= STREAM * self.max_wait or -]now - self._last_at",
            "batches-trickle-never-waits": "now - self._last_at >= [-self.max_wait-]{+0.0+}",
            "batches-waits-for-a-partition-away": "all(part.heard for part in parts)[- or now - since >= self.max_wait-]",
            "batches-many-records-are-one-task": "one_task=[-records <= self.one_task and -]size_of_values <=",
            "batches-large-records-are-one-task": "one_task=records <= self.one_task[- and size_of_values <= ONE_TASK_BYTES-],",
            "batches-slow-records-are-one-task": "self.one_task = self._bound.records, [-self._quick.records-]{+ONE_TASK+}",
            "batches-a-part-is-not-as-its-batch": "ranges=(replace(whole, start=start, end=end),),{+ one_task=False,+}",
            "batches-dropped-partition-still-counted": """[-                self._count -= len(part.messages)
-]""",
        },
        ("fleet/worker/member/membership.py", ("tests/worker/test_polls.py",)): {
            "membership-poll-outlasts-a-batch": "waits = 0.0 if still [-or busy -]else _IDLE_POLL",
        },
        # --- columns
        ("fleet/kafka_source/arrow_arrays.py", ("tests/ranges/test_arrow_arrays.py",)): {
            "arrays-bits-the-other-way-round": 'bitorder="[-little-]{+big+}"',
            "arrays-one-null-is-none": "if kept.[-all-]{+any+}():",
            "arrays-strided-memory-as-it-lies": "memory = np.[-ascontiguousarray-]{+asarray+}(values,",
            "arrays-offsets-that-run-over": """[-    if ends[-1] >= 1 << 31:
        raise OverflowError(f"{ends[-1]} bytes in one column of a batch; it holds 2 GiB at most")
-]""",
        },
        ("fleet/kafka_source/columns.py", ("tests/worker/test_imports.py",)): {
            "columns-of-lists-by-pyarrow": '        [-numbers(array("q", -]{+pa.array(+}[m.offset() for m in messages][-)-], pa.int64()),',
        },
        # --- how many records
        ("fleet/worker/batch/batches.py", ("tests/worker/test_batch_bound.py",)): {
            "bound-never-lowered": "self.records = max(1, min(self.records, [-int(fits)-]{+self.records+}))",
            "bound-takes-all-time-for-the-records": "return [-min(1.0, max(0.0, 1 - each * mean / took))-]{+0.0+}",
            "bound-takes-no-time-for-the-records": "return [-min(1.0, max(0.0, 1 - each * mean / took))-]{+1.0+}",
            "bound-line-through-about-the-same": "_VARIED: Final = 0.[-15-]{+0+}",
            "bound-nothing-is-forgotten": "_KEPT: Final = [-0.85-]{+1.0+}",
            "bound-no-room-where-the-batch-takes-all": "theirs = [-max(-]self._target - whatever[-, whatever)-],",
            "bound-grows-without-a-bound": "more = [-min(self._growth, -]max(2.0, self._target / seconds)[-)-]",
            "bound-two-batches-are-believed": "more = min(self._growth, [-max(2.0, self._target / seconds)-]{+1e9+})",
            "bound-grows-by-what-was-not-full": "if records >= self.records[-:-]{+ // 9:+}",
            "bound-beyond-the-most": "self.records = [-min(self._most, -]max(self.records, int(fits))[-)-]",
            "bound-of-one-record-lowered": "if seconds > self._target[- and records > 1-]:",
        },
        # --- ranges
        ("fleet/worker/batch/ranges.py", ("tests/ranges/test_cutting.py",)): {
            "ranges-named-beyond-what-may-be-read": "max(0, self.look.[-end-]{+high+} - self.position)",
            "ranges-one-leader-holds-up-all": "part.look is not None[- or part.missed-] for part",
            "ranges-named-without-a-leader": "self._parts[tp].missed = [-None-]{+self._parts[tp].look+}, True",
            "ranges-replay-waits-for-its-leader": "if p.replay_to is not None[- and not p.missed-]}",
            "ranges-replay-before-its-look": """[-            if any(part.look is None for part in replays.values()):
                return ()
-]""",
            "ranges-position-not-moved-behind-batch": "[-part.position, -]part.replay_to = [-end, -]None",
            "ranges-outside-of-the-log-unnoticed": "if[- not look.first <=-] part.position [-<=-]{+>+} look.high:",
            "ranges-what-one-leaves-is-nobodys": "share = -(-[-left // (len(ascending) - done-]{+limit // len(ascending+}))",
        },
        ("fleet/kafka_source/pieces.py", ("tests/ranges/test_cutting.py",)): {
            "ranges-last-piece-left-out": "size = max(least, [--(--]total // max(1, tasks))[-)-]",
        },
        ("fleet/worker/batch/adaptive_reader.py", ("tests/ranges/test_switch.py",)): {
            "ranges-backlog-begins-inline": "begins = [-self._inline.first or -](self._inline.full",
            "ranges-backlog-fills-a-batch-inline": "self._inline.first or (self._inline.full and[- not-] self._was_full)",
            "ranges-rest-waits-for-spark": "return [-min(limit, self._batch.inline) if self._by_column else -]limit",
            "ranges-gathered-beyond-what-runs": "return min(bound, fits[-, ahead-])",
            "ranges-larger-than-memory": "return min(bound, [-fits, -]ahead)",
            "ranges-each-membership-learns-anew": "self._bound.raise_to([-columnar.learnt-]{+0+})",
            "ranges-back-inline-without-seek": "[-consumer.seek(-]KafkaPartition(tp.topic, tp.partition, position)[-)-]",
        },
        # --- by column
        ("fleet/worker/batch/columnar.py", _COLUMNAR): {
            "columnar-cluster-taken-for-this-machine": 'if [-not master.startswith("local") or -]master.startswith("local-cluster"):',
            "columnar-believed-without-proof": "self._proven = [-error is None  # else-]{+True  # else+} the next batch asks again",
            "columnar-second-attempt-trusts-the-file": "        if [-again-]{+False+}:",
            "columnar-unfinished-file-read": "elif self._gathering.[-whole-]{+path+}:",
            "columnar-third-batch-in-memory": "if len(self._files) [->=-]{+>+} _BATCHES:",
            "columnar-no-look-at-what-is-free": "if free < [-self._most-]{+0+}:",
            "columnar-size-of-records-forgotten": """                if isinstance(each.error, OverBound):
                    self._mean = [-each.bytes / max(1, each.records)-]{+None+}""",
            "columnar-file-outlives-its-batch": "[-weakref.finalize(self, gathering.drop)-]{+self._kept = gathering.drop+}",
            "gathering-without-a-bound": "if self.bytes > self._most[-:-]{+ * 100:+}",
            "gathering-failed-file-stays": "if [-self.error is not None or -]self._given_up.is_set():",
            "gathering-goes-on-unwanted": """            for table in tables:
[-                self.check()
-]""",
        },
        ("fleet/system/memory_files.py", ("tests/ranges/test_memory_files.py",)): {
            "memory-of-the-living-swept": "[-                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n-]                _remove(lock_file.with_suffix",
            "memory-of-the-dead-stays": "[-        sweep(place)\n-]        while True:",
            "memory-anybody-may-look-into": "found.st_uid != os.getuid()[- or found.st_mode & 0o077-]:",
        },
        ("fleet/act/local/supervisor.py", ("tests/runtime/test_backoff.py",)): {
            "supervisor-leaves-files-in-memory": "[-        sweep_all(os.environ)\n-]        self._told",
        },
        # --- forked workers
        ("fleet/worker/slot/fork_server.py", _FORKS): {
            "fork-without-its-name": "[-        show_variable(WORKER, name)\n-]        show_arguments",
            "fork-of-code-that-was-changed": "if changed is [-not None-]{+0+}:",
            "fork-beside-threads": "if threading.active_count() > [-1-]{+9+}:",
            "fork-is-a-child-of-its-server": """        if [-os.fork()-]{+False+}:
            os._exit(0)""",
            "fork-of-nobody-lives-on": """    except (OSError, ValueError) as error:
        [-_give_up(channel, error)-]{+del error+}""",
        },
        ("fleet/act/local/fork_servers.py", _FORKS): {
            "fork-unheard-lives-on": '        self._give_up(key, answer["error"])\n[-        self._end_unheard(row.name)\n-]',
            "fork-server-tried-again-at-once": "self._clock.monotonic() + [-_PAUSE_SECONDS-]{+0+}\n        if key",
            "fork-server-of-another-environment": "return launch.argv[0], tuple([-sorted(launch.env.items())-]{+()+})",
            "fork-server-stays-unneeded": "for key in [key for key in self._servers if key not in used[-]-]{+ and not key]+}:",
            "fork-server-waited-for-for-good": "if self._clock.monotonic() - server.began > [-_LOAD_SECONDS-]{+1e9+}:",
        },
        ("fleet/system/processes.py", ("tests/processes/test_processes.py",)): {
            "orphans-stay-zombies": "[-        child.poll()-]{+        return+}",
        },
        # --- failures of records
        ("fleet/worker/batch/poison_search.py", _CULPRITS): {
            "culprits-suspect-not-asked-again": """        for seconds in self._rests{+[1:]+}:
            self._rest(seconds)
            outcomes""",
            "culprits-poison-without-a-witness": """[-        if failed and not self._witness:
            return PoisonFound(ill=self._error)
-]""",
            "culprits-part-without-records-is-a-witness": "self._witness = [-self._holds(part)-]{+True+}",
            "culprits-flood-goes-to-dead-letters": "if letters is not None and len(found) > room{+ + WITHOUT_WITNESS+}:",
            "culprits-narrowing-does-not-end": "if not self._in_time(){+ and not letters+}:",
        },
        ("fleet/worker/member/pipeline.py", ("tests/worker/test_begun.py",)): {
            "begun-lifted-and-condemned-unread": "again = ours - self.[-quarantined-]{+gone+}  # who lifts it",
            "begun-condemned-after-one-end-alone": "self.end - self.start == 1 and self.tries >= [-ALONE-]{+1+}",
            "begun-cut-one-end-later": "if begun.until is None and begun.tries <{+=+} TOGETHER:",
            "begun-condemned-by-what-was-noted-before": "[-self._noted.pop(tp, None)-]{+self.passed(tp, 0)+}",
            "begun-count-of-another-range": "tries=begun.tries[- if begun.next == end else 0-]",
        },
    },
)
