"""A batch: read, run through the entrypoint, and searched for records that cannot be processed."""
