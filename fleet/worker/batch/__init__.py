"""A batch: read, run through the entrypoint, and what of it cannot be processed."""
