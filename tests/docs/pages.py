"""The fenced blocks of README and docs, each with what runs it.

A block says its language. What holds for each language is in `test_blocks.py`; a comment right
above a block says where else it is proved: `<!-- run by tests/… -->`, a file that names the page,
or which world its commands need: `<!-- world: kubernetes -->`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.needs import repository

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>(?:run by|world:) [^\n]*?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block. page: relative to the repository; line: of its fence, from 1."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def run_by(self) -> str | None:
        """The test that runs it elsewhere."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else None

    @property
    def world(self) -> str:
        """What its commands find; `broker` where it does not say."""
        return self.mark.removeprefix("world: ") if self.mark.startswith("world: ") else "broker"

    @property
    def commands(self) -> str:
        """What a reader types: all of a `sh` block, the lines with a prompt of a `console` one."""
        if self.language != "console":
            return self.text
        return "".join(f"{line[2:]}\n" for line in self.text.splitlines() if line.startswith("$ "))


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of README and docs, page by page."""
    root = repository()
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return tuple(block for page in pages for block in _of(page, root))


def _of(page: Path, root: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        indent = len(match["indent"])
        yield Block(
            page=str(page.relative_to(root)),
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"].strip(),
            text="".join(line[indent:] + "\n" for line in match["text"].splitlines()),
            mark=match["mark"] or "",
        )
