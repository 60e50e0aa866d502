"""The part of the tests that CI runs does not depend on the day, the machine or other tests."""

from conftest import fixed_set, stable_hash


def test_the_hash_is_fnv_1a():
    """As in tests/support/test_fixed_set.cpp, of the published values."""
    for name, fnv_1a in (("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)):
        assert stable_hash(name) == (fnv_1a ^ fnv_1a >> 32) % 2**32, name


def test_a_fixed_part_of_all_and_one_of_each_file():
    names = [f"test_{file}.py::test_{i}" for file in "abc" for i in range(200)] + ["test_small.py::test_only"]
    chosen = fixed_set(names, 16)
    assert {name.split("::")[0] for name in chosen} == {name.split("::")[0] for name in names}
    assert 15 < len(chosen) < 75
    assert fixed_set(names, 1) == set(names)
    # Another order and other files change nothing.
    more = [f"test_new.py::test_{i}" for i in range(200)]
    assert {name for name in fixed_set(more + names[::-1], 16) if "new" not in name} == chosen
