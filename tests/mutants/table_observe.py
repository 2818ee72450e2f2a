"""Faults in looking: lag, what an exporter loads and keeps, what a Dagster step hears."""

from tests.mutants.mutant import faults

_TEXT = ("tests/exporter/test_metrics.py::test_text_is_what_the_library_writes",)
_COLUMNS = ("tests/exporter/test_columns.py",)
_MEMORY = ("tests/exporter/test_memory.py",)
_PIPES = ("tests/orchestration/test_pipes_messages.py",)
_WORKER = (
    "tests/benchmarks/test_worker.py::test_goals",
    "tests/benchmarks/test_worker.py::test_the_folder_of_the_other_spark",
)

MUTANTS = faults(
    {
        ("fleet/lag/snapshot.py", ("tests/lag/test_measure.py",)): {
            "lag-of-the-first-portion-for-all": "starts[place], ends[[-place-]{+which[: len(place)]+}]",
            "lag-dated-by-other-partitions": "_date(lag, committed[rows], tps=tps, which=[-place-]{+which[: len(place)]+}, logs=logs)",
        },
        ("fleet/lag/lag_columns.py", ("tests/lag/test_measure.py", *_COLUMNS)): {
            "lag-a-portion-lacks-its-last-row": "yield slice(first, first + _PORTION{+ - 1+})",
            "sums-without-the-last-portion": "range(0, size{+ - _PORTION+}, _PORTION)",
        },
        ("fleet/exporter/exporting.py", _COLUMNS): {
            "sums-of-the-last-portion-alone": "lags [-+-]= np.bincount(place[known], records[known]",
            "ages-where-nothing-waits": "oldest[(counts > 0) & ([-waiting == 0-]{+counts < 0+})] = 0.0",
        },
        ("fleet/log/readers/positions.py", ("tests/exporter/test_key_rows.py",)): {
            "rows-of-another-partition": "if at < len(kept)[- and kept[at] >> 32 == number-]:",
            "rows-at-a-number-of-others": "if [-both >> 32 == number-]{+number >= 0+}:",
            "rows-out-of-order": "kept.insert([-bisect_left(kept, both)-]{+len(kept)+}, both)",
        },
        ("fleet/exporter/metrics.py", _TEXT): {
            "metrics-values-under-other-labels": "order = [-sorted(-]range(len(labels))[-, key=labels.__getitem__)-]",
            "metrics-odd-names-as-they-are": '_TO_ESCAPE.search("".join([-every-]{+()+})) is not None',
            "metrics-histogram-without-its-count": '[-self.samples.append(("_count", values, count))-]{+pass+}',
        },
        ("fleet/manager/cycle.py", _MEMORY): {
            "exporter-loads-what-acts": """{+from fleet.act.kafka import GroupAdmin
+}from fleet.act.lease import works_on""",
        },
        ("fleet/log/replay/counting.py", ("tests/counting/test_count.py",)): {
            "pauses-of-idle-partitions-last": "if start is None or at - start[0] > _SILENT_GAPS{+ * 60+} * start[1]:",
            "pauses-end-with-what-is-read-again": "if [-not advances-]{+False+}:",
            "pauses-so-far-with-the-usual-gap": "tp: at - start[0][- - start[1]-]",
        },
        ("fleet/log/readers/tail.py", _MEMORY): {
            "exporter-loads-librdkafka": "{+from fleet.log.readers.group_log import GroupLog\n+}from fleet.log.records import TOPIC, Unreadable",
        },
        ("fleet/log/readers/positions.py", _MEMORY): {
            "exporter-loads-masked-arrays": "if [-np.diff(np.sort(rows)).all()-]{+len(np.unique(rows)) == len(rows)+}:",
        },
        ("fleet/system/memory_files.py", _MEMORY): {
            "exporter-keeps-what-a-look-frees": '_call("[-mallopt-]{+mallinfo+}", _M_MMAP_THRESHOLD, size)',
            "exporter-with-a-heap-for-each-thread": '_call("mallopt", _M_ARENA_MAX, [-1-]{+0+})',
            "exporter-needs-glibc": "with contextlib.suppress([-OSError, -]AttributeError):",
        },
        ("fleet/dagster/group_assets.py", _PIPES): {
            "pipes-half-a-message-is-one": '*lines, rest = [-(rest + file.read()).split(b"\\n")-]{+[*file.read().splitlines(), b""]+}',
            "pipes-ends-at-what-is-no-message": 'handler.report_pipes_framework_exception("a message", sys.exc_info()){+; return+}',
        },
        # --- benchmarks' verdicts
        ("benchmarks/worker.py", _WORKER): {
            "bench-executors-held-to-the-goal-of-one-machine": "limit=[-GOAL_TUNED_EXECUTORS if self.options.executors else -]GOAL_TUNED,",
            "bench-executors-held-to-ages": "if [-self.options.executors-]{+False+}:\n            return (tuned,)",
        },
        ("benchmarks/structured.py", _WORKER): {
            "bench-spark-of-another-folder": "python.parents[[-1-]{+2+}].glob",
        },
    },
)
