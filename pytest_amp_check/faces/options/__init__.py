"""Options: one table of them, and how it becomes flags, is read from files, and is resolved to values."""

from .files import FILES, ConfigError, candidates
from .flags import CLI, PYTEST, RUN, add_flags, flags
from .kinds import AUTO, FLAG, RUNTIME, STATIC, TYPES, WORDS, device, dtype, nearest
from .meaning import cache, fails, fixable, nearer, settings
from .resolving import DEBUG, resolve
from .table import OPTIONS, Option, Options

__all__ = [
    "AUTO",
    "CLI",
    "DEBUG",
    "FILES",
    "FLAG",
    "OPTIONS",
    "PYTEST",
    "RUN",
    "RUNTIME",
    "STATIC",
    "TYPES",
    "WORDS",
    "ConfigError",
    "Option",
    "Options",
    "add_flags",
    "cache",
    "candidates",
    "device",
    "dtype",
    "fails",
    "fixable",
    "flags",
    "nearer",
    "nearest",
    "resolve",
    "settings",
]
