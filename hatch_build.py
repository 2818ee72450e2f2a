"""Puts README.md into the distribution with links that work outside the repository.

Problem: README's links are relative, and a package index shows it where nothing lies beside it.
Choice: a metadata hook prefixes them with `address` of pyproject.toml. Without an address a link
becomes its text, and an image goes. Cost: README may use inline links only, no reference links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<path>[^)\s]+)\)")


def with_absolute_links(text: str, address: str) -> str:
    """Returns Markdown whose relative links begin with the address; without one, their texts."""

    def absolute(link: re.Match[str]) -> str:
        if address:
            return f"{link['image']}[{link['text']}]({address.rstrip('/')}/{link['path']})"
        return "" if link["image"] else link["text"]

    return _LINK.sub(absolute, text)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` of the distribution's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Reads README.md beside this file."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = str(self.config.get("address", ""))
        readme = with_absolute_links(text, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
