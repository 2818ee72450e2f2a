"""The README of the distribution: no link of it leads into a repository that is not there."""

import email
import re
import zipfile
from pathlib import Path

import pytest

from hatch_build import with_absolute_links

TEXT = "![a](docs/a.png) [b](docs/b.md#c) [d](https://e.example/f) [g](#h)"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", " b [d](https://e.example/f) [g](#h)"),
        (
            "https://x.example/v1/",
            TEXT.replace("docs/", "https://x.example/v1/docs/"),
        ),
    ],
)
def test_relative_links_become_absolute(address: str, expected: str) -> None:
    """With an address they begin with it; without one only their text is left."""
    assert with_absolute_links(TEXT, address) == expected


@pytest.mark.slow
def test_the_wheel_carries_the_readme(wheel: Path) -> None:
    """As Markdown, without a relative link, and free to be uploaded."""
    files = zipfile.ZipFile(wheel)
    (name,) = [each for each in files.namelist() if each.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(files.read(name))
    assert metadata["Version"] == "0.1.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert text.lstrip().startswith("# Fleet")
    assert not re.findall(r"\]\((?!https?://|#)", text)
    assert not [each for each in metadata.get_all("Classifier", []) if "Private" in each]
