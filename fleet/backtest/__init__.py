"""Replays load of a group through rules of scaling, and counts what each would have cost."""
