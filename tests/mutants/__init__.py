"""Planted faults: do the tests notice when a rule of Fleet is broken?

Problem: a test that cannot fail guards nothing, and coverage does not tell. Choice: a table of
defects that somebody could make (`table_*.py`), each with the tests that have to fail on it;
`make mutants` plants them one by one in copies of this tree and runs those tests. Each fault names
the text it replaces, which has to stand exactly once in its file: a table that has fallen behind
the code is an error of the ordinary tests (`test_table.py`), not a fault that is never planted.
Cost: who rewords a line that a fault is planted in rewords the table as well.
"""
