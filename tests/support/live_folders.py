"""What is below a folder in which living processes make and remove others.

`Path.rglob` of Python 3.11 and 3.12 raises FileNotFoundError for a folder that goes while it is
walked; `os.walk` passes it by.
"""

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Of all depths."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names]


def folders_below(folder: Path) -> list[Path]:
    """The same of folders, without the one asked for."""
    return [Path(at, name) for at, names, _ in os.walk(folder) for name in names]
