"""A worker's slot: how it is taken, owned, handed over and released."""
