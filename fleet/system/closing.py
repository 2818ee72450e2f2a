"""What is open until it is closed: `with` around anything that has a `close`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that closes itself at the end, whatever happened inside."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; harmless if there are none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
