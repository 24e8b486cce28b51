"""Build hook: the README of the distribution with absolute links, because PyPI shows it without the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = "README.md"
#: An image or a link with a target inside the repository.
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Hook that sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of the project."""
        text = (Path(self.root) / README).read_text(encoding="utf-8")
        made = make_links_absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": made}


def make_links_absolute(text: str, repository: str) -> str:
    """Return Markdown in which links and images lead to the repository."""
    return RELATIVE.sub(lambda found: _make_absolute(*found.groups(), repository), text)


def _make_absolute(image: str, label: str, target: str, repository: str) -> str:
    return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/HEAD/{target})"
