"""How often a history looks for what nobody needs any more, and what it reads for it."""

from dataclasses import replace

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.history.job import Recorder
from fleet.history.job_memory import JobMemory
from fleet.history.polling import Poller
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import FOLDER, latest, numbers, read_manifest
from fleet.history.tables.writing import KEPT_SECONDS, Writer
from tests.history.test_tables import DAY, NOW, add, looked, rebalance
from tests.support.snapshots import snapshot_of


class Counted(TableFolder):
    """A folder that counts what is asked of it."""

    def __init__(self, path):
        super().__init__(path)
        self.listed = 0
        """Listings other than that of the manifests."""
        self.parsed: list[str] = []
        """Manifests that were read."""
        self.away = False

    def files(self, folder):
        self.listed += folder != FOLDER
        return super().files(folder)

    def folders(self, folder):
        if self.away:
            raise Unreachable("the store does not answer")
        self.listed += 1
        return super().folders(folder)

    def read(self, name):
        self.parsed += [name] * name.startswith(FOLDER)
        return super().read(name)


class Quiet:
    """An offsets topic without a record."""

    def bounds(self):
        return {}


@pytest.fixture
def clock():
    return ManualClock(at=NOW)


@pytest.fixture
def place(tmp_path):
    return Counted(tmp_path)


def opened(place, clock):
    return Writer(place, cluster="main", clock=clock, retention=10 * DAY)


def polled(writer):
    seen = iter([looked({f"{name}:1": [0]}, NOW) for name in "abcdefgh"])
    return Poller(writer, look=lambda: next(seen, snapshot_of()), wanted=lambda _: True)


def recorded(writer):
    return Recorder(writer, Quiet(), say=print)


@pytest.mark.parametrize("made", [polled, recorded])
def test_a_tail_looks_once_in_the_time_that_files_stay(place, clock, made):
    """At once at its start, then every ten minutes; nothing is due sooner."""
    with opened(place, clock) as writer:
        job, looked_at, began = made(writer), [], clock.now()
        for wait in (0, 10, 300, KEPT_SECONDS - 311, 2, 10, KEPT_SECONDS):
            clock.sleep(wait)
            before = place.listed
            job.catch_up()
            if place.listed > before:
                looked_at.append(clock.now() - began)
    assert looked_at == [0, KEPT_SECONDS + 1, 2 * KEPT_SECONDS + 11]


def test_whoever_asks_has_it_done_at_once(place, clock):
    """`fleet history compact`, however short a time ago it was done."""
    with opened(place, clock) as writer:
        for _ in range(2):
            before = place.listed
            writer.clear_away()
            assert place.listed > before


def test_one_that_failed_is_done_again(place, clock):
    """A store that was away then is asked at the next catch-up."""
    with opened(place, clock) as writer:
        place.away = True
        with pytest.raises(Unreachable):
            writer.clear_away_if_due()
        place.away = False
        writer.clear_away_if_due()
        assert place.listed


def test_a_writer_reads_none_of_its_own_manifests(place, clock):
    """It knows what it committed; those of the writer before are read once, at the start."""
    with opened(place, clock) as writer:
        for number in range(3):
            add(writer, rebalance(number))
        place.parsed.clear()
        writer.clear_away()
        assert place.parsed == []
    with opened(place, clock) as writer:
        place.parsed.clear()
        writer.clear_away()
        assert sorted(place.parsed) == [f"{FOLDER}/{n:012d}.json" for n in (1, 2)]
        place.parsed.clear()
        add(writer, rebalance(3))
        for number in range(4, 6):
            clock.sleep(KEPT_SECONDS + 1)
            add(writer, rebalance(number))
            writer.clear_away_if_due()
        assert place.parsed == []


def test_what_readers_may_have_stays_and_a_new_writer_finds_nothing_more(place, clock):
    """By memory as by reading: files of manifests that stood within ten minutes, and no others."""
    memory = JobMemory()
    with opened(place, clock) as writer:
        for number in range(8):
            clock.sleep(250)
            add(writer, rebalance(number), memory=memory)
            gone = {writer.manifest.of("rebalances")[0].name} if number % 2 else set()
            kept = tuple(f for f in writer.manifest.files if f.name not in gone)
            writer.commit(replace(writer.manifest, files=kept))
            writer.clear_away()
            stood = [read_manifest(place, n) for n in numbers(place)]
            there = {f.name for f in place.files("rebalances")}
            assert {f.name for m in stood for f in m.of("rebalances")} == there
        assert len(there) > len(writer.manifest.of("rebalances")), "some are for readers alone"
        assert len(stood) < writer.manifest.number
    with opened(place, clock) as writer:
        assert writer.clear_away() == 0
        assert writer.manifest == latest(place)
