"""What is open until it is closed: `with` around anything that has a `close`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that closes itself at the end, whatever happened inside."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; harmless where nothing is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
