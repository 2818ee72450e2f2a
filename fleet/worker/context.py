"""The name of `fleet.model.batch_context` in the last release, for its jobs."""

from fleet.model.batch_context import BatchContext, BatchRange

__all__ = ["BatchContext", "BatchRange"]
