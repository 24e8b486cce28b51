"""git, asked of a repository that anybody may have written: nothing is started that its configuration names."""

from __future__ import annotations

import os

#: Neither a file system monitor nor hooks nor a pager.
COMMAND = (
    "git",
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
)
#: What a hook of git sets for its own repository, which need not be this one.
_HOOKED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
#: An object that is not there is not fetched: what does so is named by the configuration, too. That is the first
#: variable from git 2.45 on, and the second one, which allows no way to fetch, before. The index stays as it is.
_ASKED = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ":", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def environment() -> dict[str, str]:
    """The variables that git is started with."""
    return {name: value for name, value in os.environ.items() if name not in _HOOKED} | _ASKED
