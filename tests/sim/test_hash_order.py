"""Tables are walked as Java walks them: the orders below were printed by Java 17."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.sim.hashing import HashOrder, Neighbours, SlotOrder, java_hash


def test_hashes() -> None:
    """Of Integer, String and Kafka's Uuid."""
    assert java_hash(7) == 7
    assert java_hash("abc") == 96_354
    assert java_hash("é𝄞") == (31 * (31 * 0xE9 + 0xD834) + 0xDD1E) & 0xFFFFFFFF
    assert java_hash(bytes(15) + b"\1") == 1


def test_buckets() -> None:
    """By bucket; in one bucket as they came; a larger table has more buckets."""
    table: HashOrder[int, None] = HashOrder()
    for key in (33, 17, 1, 2):
        table[key] = None
    assert list(table) == [33, 17, 1, 2]
    for key in range(3, 12):
        table[key] = None
    assert list(table)[:4] == [33, 1, 2, 3]
    assert list(HashOrder.copied(dict.fromkeys((5, 2)))) == [5, 2]
    assert list(HashOrder.copied(dict.fromkeys((5, 2, 1)))) == [1, 2, 5]


@given(st.lists(st.integers(0, 70_000)), st.lists(st.integers(0, 70_000)))
def test_each_put_after_the_other(first: list[int], more: list[int]) -> None:
    """Also into a table that was walked before."""
    one: HashOrder[int, str] = HashOrder()
    each: HashOrder[int, str] = HashOrder()
    for keys in (first, more):
        for key in keys:
            one[key] = "a"
        each.put_each(dict.fromkeys(keys, "a"))
        assert each.items() == one.items()
        assert each.capacity == one.capacity


def test_what_is_computed_comes_first() -> None:
    """`computeIfAbsent` puts a key before the others of its bucket, and grows before it looks."""
    table: HashOrder[int, str] = HashOrder()
    table[1] = "a"
    table.put_first(17, "b")
    table.put_first(33, "c")
    table[49] = "d"
    assert list(table) == [33, 17, 1, 49]
    del table[17]
    table[17] = "e"
    assert list(table) == [33, 1, 49, 17]
    small: HashOrder[int, str] = HashOrder(0)
    for key in (2, 1):
        small.put_first(key, "")
        small.found(key, "")
    assert (small.capacity, list(small)) == (4, [1, 2])


def test_others() -> None:
    """Ranges ascend; of Kafka's own tables a slot's newest key comes first."""
    assert list(Neighbours(14, 18)) == [14, 15, 16, 17]
    slots: SlotOrder[str, int] = SlotOrder()
    for number, key in enumerate("abcdef"):
        slots[key] = number
    assert slots.capacity == 8
    assert sorted(slots) == list("abcdef")
    assert list(slots.values()) == [slots[key] for key in slots]
