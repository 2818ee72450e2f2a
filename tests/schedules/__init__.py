"""Our own slot, slot targets and change code by seed, against the coordinator's model."""
