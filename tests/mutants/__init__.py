"""Planted faults: do the tests notice when a rule of Fleet is broken?

Problem: a test that cannot fail guards nothing, and coverage does not tell. Choice: a table of
defects that somebody could make (`table.py`), one or two for each rule, each with the tests that
have to fail on it; `make mutants` plants them one by one in copies of this tree and runs those
tests. A fault names a function and one syntax node in it, so formatting and comments do not matter;
a node that is gone is an error of the ordinary tests (`test_table.py`), not a fault that is never
planted. Cost: who changes such a node, or renames what holds it, changes the table as well.
"""
