"""ConsumerFleet resources: what they declare, and the operator that carries them out."""
