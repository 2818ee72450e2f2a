"""Maps are walked through as Java walks through them."""

from fleet.sim.coordinator.java_order import JavaMap, spread


def test_hash() -> None:
    """java.lang.String.hashCode with its upper half mixed in, as java.util.HashMap takes it."""
    assert spread("") == 0
    assert spread("a") == 97
    # "polygenelubricants".hashCode() is Integer.MIN_VALUE.
    assert spread("polygenelubricants") == 0x80000000 ^ 0x8000


def test_order() -> None:
    """By the place in the table, which has 16 and grows with the 13th; then as they came."""
    names: JavaMap[int] = JavaMap()
    for number, name in enumerate(("Q", "b", "A", "a")):  # 81, 98, 65, 97: A, a and Q share 1
        names[name] = number
    assert list(names) == ["Q", "A", "a", "b"]
    assert names.values() == [0, 2, 3, 1]
    names.pop("Q")
    names["Q"] = 4
    assert list(names) == ["A", "a", "Q", "b"]
    for name in "ghijklmno":
        names[name] = 0
    assert list(names)[:5] == ["A", "a", "b", "g", "h"]
    assert list(names)[-1] == "Q"
