"""What the site shows otherwise than it is written: docstrings name other things in reStructuredText's way."""

from __future__ import annotations

import re
from typing import Any

from pytest_amp_check.frontends import json_formats


def on_config(config: Any, **_: object) -> Any:
    """The address of the site is the one that findings lead to: where pyproject.toml says it, it is said."""
    if json_formats.find_documentation_url():
        config.site_url = f"{json_formats.find_documentation_url()}/"
    return config


def on_page_content(html: str, **_: object) -> str:
    """The name alone of what a role names."""
    return re.sub(r":(?:class|func|meth|mod):<code>[~.]*([^<]+)</code>", r"<code>\1</code>", html)
