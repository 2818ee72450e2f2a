"""One member of a group: the thread that owns the Consumer."""
