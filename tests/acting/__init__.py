"""Changes performed on a store, with workers that live in memory and a clock that is set."""
