"""Options: the option table, flags, configuration files, and resolution of values."""

from .files import FILES, ConfigError, list_candidates
from .flags import CLI, PYTEST, RUN, add_flags, read_flags
from .interpretation import find_cache_folder, find_fixable_codes, is_failing, make_settings, make_settings_finder
from .kinds import AUTO, FLAG, RUNTIME, STATIC, TYPES, VERSION, WORDS, parse_device, parse_dtype, suggest_nearest
from .option import Option
from .option_values import Options
from .resolving import DEBUG, resolve_options
from .table import OPTIONS, TOPICS

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
    "TOPICS",
    "TYPES",
    "VERSION",
    "WORDS",
    "ConfigError",
    "Option",
    "Options",
    "add_flags",
    "find_cache_folder",
    "find_fixable_codes",
    "is_failing",
    "list_candidates",
    "make_settings",
    "make_settings_finder",
    "parse_device",
    "parse_dtype",
    "read_flags",
    "resolve_options",
    "suggest_nearest",
]
