"""README and docs: every block is run, or checked for what it is."""
