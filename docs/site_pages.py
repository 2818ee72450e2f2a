"""Hooks of mkdocs: what the site shows differently from the repository.

The README is the first page, so that it is written once. Links to code become plain words, because
the site holds pages only.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds README.md as index.md; its links into docs/ become links beside it."""
    readme = Path(config.config_file_path).parent / "README.md"
    text = _inside(readme.read_text(encoding="utf-8"), readme.parent, Path(config.docs_dir))
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def _beside_docs(match: re.Match[str]) -> str:
    """Rewrites a link of the README; one that leaves docs/ becomes its text."""
    if not match[2].startswith("docs/"):
        return match[1]
    return f"[{match[1]}]({match[2].removeprefix('docs/')}{match[3] or ''})"


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Replaces links to files outside of docs/ by their text."""
    docs = Path(config.docs_dir)
    return _inside(text, (docs / page.file.src_uri).parent, docs)


def _inside(text: str, folder: Path, docs: Path) -> str:
    def kept(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        left = target.exists() and not target.is_relative_to(docs)
        return match[1] if left else match[0]

    return _LINK.sub(kept, text)
