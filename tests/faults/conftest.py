"""Workers driven through the store, as the worker's own tests have them."""

from tests.worker.conftest import group

__all__ = ["group"]
