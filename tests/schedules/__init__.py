"""Our own slot, gate and change code by seed, against the coordinator's model."""
