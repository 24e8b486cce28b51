"""Rule pages that an editor can open, as temporary files if no website shows the pages."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from ...protocol.rules import RULES
from ..json_formats import find_rule_page
from ..rule_text import rule_markdown


class RulePages:
    """Addresses of rule pages. Files are written at the first request, and removed with the process."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._written_addresses: dict[str, str] = {}

    def find_address(self, code: str) -> str:
        """Return the address of the page of a rule, or "" if no file can be written."""
        public = find_rule_page(code)
        if public:
            return public
        if code not in self._written_addresses:
            self._written_addresses[code] = self._write_page(code)
        return self._written_addresses[code]

    def remove_files(self) -> None:
        """Remove the temporary files."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write_page(self, code: str) -> str:
        try:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="amp-check-", ignore_cleanup_errors=True)
            path = Path(os.path.realpath(self._folder.name), f"{code}.md")
            path.write_text(rule_markdown(RULES[code]), encoding="utf-8")
        except OSError:
            return ""
        return path.as_uri()
