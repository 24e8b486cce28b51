"""Generator of files from code: the rule index, the pages of rules and of torch's messages, and parts of documents.

``DOCUMENTS`` maps documents to their generated parts. The pages are about the rules, torch's messages, the options, and
the comparison with ruff.

    python benchmarks/readme.py            writes protocol/rules/index.py, docs and the documents
    python benchmarks/readme.py --check    lists the parts that are out of date
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from pytest_amp_check.protocol.registration import incomplete_tables

with incomplete_tables():
    import beside_ruff
    from gpu.claims import CLAIMS
    from negative_examples import negative_examples

    from pytest_amp_check.frontends.explanations import message_markdown
    from pytest_amp_check.frontends.json_formats import find_documentation_url
    from pytest_amp_check.frontends.options import TOPICS, Option
    from pytest_amp_check.frontends.options.agents import VARIABLES as AGENT_VARIABLES
    from pytest_amp_check.frontends.options.schema import make_schema
    from pytest_amp_check.frontends.rule_text import rule_markdown
    from pytest_amp_check.protocol import rules
    from pytest_amp_check.protocol.messages import MESSAGES
    from pytest_amp_check.protocol.rule import Listing, Rule

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
README_ZH = ROOT / "README.zh.md"
#: The documents, with the parts that are generated here.
DOCUMENTS = {
    README: ("output",),
    README_ZH: ("output",),
    ROOT / "docs" / "how.md": ("modules",),
    ROOT / "docs" / "checking.md": ("whole output",),
    ROOT / "docs" / "gpu.md": ("claims",),
    ROOT / "docs" / "rules.md": ("rules",),
}
PACKAGE = ROOT / "pytest_amp_check"
PAGES = ROOT / "docs" / "rules"
MESSAGE_PAGES = PAGES.parent / "messages"
MESSAGE_INDEX = PAGES.parent / "messages.md"
SITE = ROOT / "mkdocs.yml"
OPTIONS_PAGE = PAGES.parent / "options.md"
LLMS = PAGES.parent / "llms.txt"
SCHEMA = PAGES.parent / "amp-check.schema.json"
RUFF = PAGES.parent / "ruff.md"
INDEX = PACKAGE / "protocol" / "rules" / "index.py"
#: The argument of the first command, and the finding that the first screen shows in full.
EXAMPLE, SHOWN = "fixtures/headline.py", "AMP201"
LEFT_OUT = "   [...]"
#: The folders of the package, from the checker to the frontends.
FOLDERS = ("protocol", "static", "runtime", "monitors", "frontends")
#: Path of a rule's module. Rules have a row in a table of their own, so the list of modules omits these modules.
RULE = re.compile(r"protocol/rules/\w+/(?!__init__)")
#: The longest line that the formatter allows, in characters.
LINE = 120
READERS = {"static": "source", "runtime": "runs", "both": "source, runs"}


def blocks() -> dict[str, str]:
    """Return the generated parts by name: the texts between ``<!-- name -->`` and ``<!-- end of name -->``."""
    output = example_output()
    return {
        "output": _fenced(shortened(output)),
        "whole output": _fenced(output),
        "rules": rule_table(),
        "modules": _fenced(modules()),
        "claims": claim_table(),
    }


@functools.cache
def written() -> dict[str, tuple[Rule, str]]:
    """Return the rules as defined in their modules, each with its family, in the order of the codes."""
    found: dict[str, tuple[Rule, str]] = {}
    for path in INDEX.parent.glob("*/[a-z]*.py"):
        family = path.parent.name
        rule: Rule = importlib.import_module(f"{rules.__name__}.{family}.{path.stem}").RULE
        if path.stem != rules.module_name(rule.name):
            sys.exit(f"{path} holds {rule.name}: the module of a rule has its name")
        found[rule.name] = (rule, family)
    ordered = rules.index_by_code(rule for rule, _ in found.values())
    rules.index_by_label(ordered.values())
    return {code: found[rule.name] for code, rule in ordered.items()}


def index() -> str:
    """Return the source of the module that lists the rules."""
    rows = [listing(rule, family) for rule, family in written().values()]
    return (
        '"""What is known of each rule before its module is loaded: written by benchmarks/readme.py."""\n\n'
        "from __future__ import annotations\n\n"
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from ..rule import Listing\n\n"
        "#: In the order of the codes.\n"
        "INDEX: tuple[Listing, ...] = (\n" + "".join(f"    {literal(row, 4)},\n" for row in rows) + ")\n"
    )


def listing(rule: Rule, family: str) -> Listing:
    listed = (rule.code, rule.name, family, rule.severity, rule.detected_by, rule.on_by_default, rule.applicability)
    return (
        listed,
        rule.prescan_words,
        tuple(kind.__name__ for kind in rule.event_checks),
        tuple(kind.__name__ for kind in rule.program_checks),
        tuple(rule.violations),
    )


def literal(value: object, indent: int) -> str:
    """Format a tuple like the formatter: in one line if it fits, else with one item per line."""
    if not isinstance(value, tuple):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    items = [literal(item, indent + 4) for item in value]
    line = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if "\n" not in line and indent + len(line) < LINE:
        return line
    blank = " " * indent
    return "(\n" + "".join(f"{blank}    {item},\n" for item in items) + f"{blank})"


def pages() -> dict[Path, str]:
    """Return by path the page of each rule, other generated pages, and the schema of the configuration."""
    found = {PAGES / f"{rule.code}.md": rule_markdown(rule, negative_examples(rule)) for rule, _ in written().values()}
    found |= {MESSAGE_PAGES / f"{name}.md": message_markdown(message) for name, message in MESSAGES.items()}
    found |= {MESSAGE_INDEX: message_index(), OPTIONS_PAGE: options_page(), RUFF: beside_ruff.page()}
    texts = {path.relative_to(PAGES.parent).as_posix(): text for path, text in found.items()}
    found[SITE] = site_configuration(SITE.read_text(encoding="utf-8"))
    return {**found, SCHEMA: json.dumps(make_schema(), indent=2) + "\n", LLMS: language_model_index(texts)}


def message_index() -> str:
    """Return the page that leads to the page of each message of torch."""
    head = (
        "# PyTorch messages\n\nThis page lists messages of torch that mixed precision leads to, each with causes and "
        'fixes. `amp-check explain "TEXT"` finds a page from the text of an exception, or of a whole traceback: '
        "`amp-check explain - < log.txt`.\n\n"
    )
    rows = (
        (f"[{message.text}](messages/{name}.md)", message.raised_by[0].upper() + message.raised_by[1:])
        for name, message in MESSAGES.items()
    )
    return head + _table(("Message", "Raised by"), rows)


def site_configuration(text: str) -> str:
    """Return the configuration of the site with all pages of rules and messages, and its address."""
    families: dict[str, list[str]] = {}
    for code, (_, family) in written().items():
        families.setdefault(family, []).append(code)
    pages = {
        "rules": [
            line
            for family, codes in families.items()
            for line in (f"- {family.capitalize()}:", *(f"    - rules/{code}.md" for code in codes))
        ],
        "messages": [f"- messages/{name}.md" for name in MESSAGES],
    }
    for name, lines in pages.items():
        found = re.search(rf"^( *)# {name}:.*\n(?:.*\n)*?(?= *# end of {name}$)", text, re.MULTILINE)
        if found is None:
            sys.exit(f"{SITE.name} needs a comment `# {name}:` and below it one `# end of {name}`")
        written_lines = [found[0].splitlines()[0], *(found[1] + line for line in lines)]
        text = text[: found.start()] + "".join(f"{line}\n" for line in written_lines) + text[found.end() :]
    text = re.sub(r"^site_url: .*\n", "", text, flags=re.MULTILINE)
    address = find_documentation_url()
    return text.replace("site_description:", f"site_url: {address}/\nsite_description:", 1) if address else text


def language_model_index(made: dict[str, str]) -> str:
    """Return the index of the documentation for language models: each page and each rule with its first sentence.

    ``made`` are the texts of generated pages, by path from docs.
    """
    listed = re.findall(
        r"^ +- ([^:\n]+): ([\w/.]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    lines = [LLMS_HEAD, "## Documentation\n"]
    for title, name in listed:
        if name.startswith(("rules/", "messages/")):
            continue
        text = made.get(name) or (PAGES.parent / name).read_text(encoding="utf-8")
        lines.append(f"- [{title}]({name}): {first_sentence(text)}")
    lines.append("\n## Rules\n")
    lines += [f"- [{rule.code} {rule.name}](rules/{rule.code}.md): {rule.summary}" for rule, _ in written().values()]
    lines.append("\n## PyTorch messages\n")
    lines += [f"- [{message.text}](messages/{name}.md)" for name, message in MESSAGES.items()]
    return "\n".join(lines) + "\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of a page below its title, without line ends."""
    paragraph = next(part for part in text.split("\n\n") if part[0].isalnum() or part[0] in "`*[")
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]


LLMS_HEAD = """\
# pytest-amp-check

> Finds the mistakes that PyTorch mixed-precision training code makes silently: wrong orders of autocast and GradScaler
> calls, in source (`amp-check check`) and in real training steps (`amp-check run`, a pytest fixture).

For programs: `amp-check check --output-format agent PATH` prints one line for each finding with the edits of its fix,
`amp-check explain CODE` explains a rule, and `amp-check mcp` serves both to an agent.
"""


def stale_pages() -> list[Path]:
    """Return the pages that are missing, out of date, or without a rule."""
    made = pages()
    stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return stale + sorted({*PAGES.glob("*.md"), *MESSAGE_PAGES.glob("*.md")} - set(made))


def example_output() -> str:
    """Return the output of the first command of the README, byte for byte."""
    unwanted = ("FORCE_COLOR", "PYTHONSAFEPATH", *AGENT_VARIABLES)
    settings = {name: value for name, value in os.environ.items() if name not in unwanted}
    command = [sys.executable, "-m", "pytest_amp_check", "check", EXAMPLE]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 1:
        sys.exit(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr}")
    return done.stdout


def shortened(output: str) -> str:
    """Return the output with one finding in full and the first line of each other finding, with omissions marked."""
    *findings, summary = output.rstrip("\n").split("\n\n")
    kept = [text if f" {SHOWN} [" in text else f"{text.splitlines()[0]}\n{LEFT_OUT}" for text in findings]
    return "\n\n".join([*kept, summary]) + "\n"


def claim_table() -> str:
    rows = ((f"`{claim.name}`", claim.text, f"`{claim.part}`") for claim in CLAIMS)
    return _table(("Claim", "What a GPU has to show", "Part"), rows)


def rule_table() -> str:
    rows = (
        (
            f"[{rule.code}](rules/{rule.code}.md)",
            f"`{rule.name}`",
            rule.severity,
            READERS[rule.detected_by],
            rule.summary,
        )
        for rule, _ in written().values()
    )
    return _table(("Code", "Name", "Severity", "Decided from", "What is wrong"), rows)


def options_page() -> str:
    """Return the page that lists every option with all ways to set it."""
    sections = [OPTIONS_HEAD]
    for topic, options in TOPICS.items():
        sections += [f"## {topic[0].upper()}{topic[1:]}\n", *map(_option_section, options)]
    return "\n".join(sections)


def _option_section(option: Option) -> str:
    ways = [("`amp-check`", _flags(option)), ("variable", f"`{option.environment_variable}`")]
    if option.allowed_in_file:
        ways.append(("configuration file", f"`{option.key} = {_example(option)}`"))
    pytest = [name for name in (option.pytest_flag, option.ini) if name]
    if pytest:
        ways.append(("pytest", ", ".join(f"`{name}`" for name in pytest)))
    if option.kind.choices is not None:
        ways.append(("values", ", ".join(f"`{value}`" for value in option.kind.choices())))
    if _default(option):
        ways.append(("default", _default(option)))
    lines = "".join(f"- {name}: {text}\n" for name, text in ways if text)
    return f"### {option.key}\n\n{option.help[0].upper()}{option.help[1:]}.\n\n{lines}"


OPTIONS_HEAD = """\
# Options

This page lists every option with all ways to set it. The first of these that sets an option decides: the command line,
`--config KEY=VALUE`, the environment variable, pytest's own configuration, the configuration file, the files that it
extends, the default. What begins with `extend-` is taken from all of these together.

The configuration file is the nearest `.amp-check.toml`, `amp-check.toml` or `pyproject.toml` with a table
`[tool.amp-check]`, from the checked files upwards; the first two hold the keys alone. Relative paths and patterns count
from the folder of the file they stand in, elsewhere from the working folder. In a variable, flags are `1` or `0`, lists
are separated by commas, paths as in `PATH`, and mappings by `;`. Every flag that switches something on has a `--no-`
form. Unknown keys, values, and names of variables that are nearly right are errors.

`extend = "../amp-check.toml"` takes the options of another file that this one does not set. That file may extend a
third one; its own relative paths count from its own folder. `amp-check check --show-settings` lists the value and the
origin of every option, with `--output-format json` as JSON.

[amp-check.schema.json](amp-check.schema.json) is a JSON schema of the keys. `validate-pyproject` finds it in the
installed package. An editor with the Taplo or Even Better TOML extension reads it by `#:schema` and the path of the
file in the first line of `amp-check.toml`.
"""


def _example(option: Option) -> str:
    return "false" if option.default is True else option.kind.example


def _default(option: Option) -> str:
    if option.default is None:
        return "every rule that is on by default" if option.key == "select" else ""
    return f"`{json.dumps(option.default)}`"


def _flags(option: Option) -> str:
    """Return the flags of both commands, or the flag with the name of the only command that has it."""
    names = ", ".join(f"`{name}`" for name in (option.short_flag, option.flag or option.run_flag) if name)
    if not names or option.flag == option.run_flag:
        return names
    return f"{names} ({'check' if option.flag else 'run'})"


def modules() -> str:
    """Return the list of the package's modules with docstrings, each with the first docstring line."""
    rows = []
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"), key=_by_folder)]
    for path in (*paths, *sorted(PACKAGE.glob("*.py"))):
        name = path.relative_to(PACKAGE).as_posix()
        said = "" if RULE.match(name) else ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if said:
            # The markup of reStructuredText has no meaning in the list.
            line = re.sub(r":\w+:`[~.]*([^`]+)`", r"\1", said.splitlines()[0]).replace("``", "")
            rows.append((name, line))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {said}\n" for name, said in rows)


def _by_folder(path: Path) -> tuple[Path, str]:
    return path.parent, path.name


def replaced(document: str, parts: dict[str, str]) -> str:
    """Replace the parts of a document. Exit unless each part occurs exactly once."""
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        if document.count(begin) != 1 or document.count(end) != 1:
            sys.exit(f"it needs one line {begin.strip()} and below it one line {end.strip()}")
        before, _, rest = document.partition(begin)
        after = rest.partition(end)[2]
        # Renderers differ if no empty line separates Markdown and a comment.
        document = f"{before}{begin}\n{text}\n{end}{after}"
    return document


def _fenced(text: str) -> str:
    return f"```text\n{text}```\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if something is out of date")
    given = parser.parse_args()
    if not given.check and INDEX.read_text(encoding="utf-8") != index():
        INDEX.write_text(index(), encoding="utf-8")
        # The rules that are loaded here come from the old index.
        sys.exit(subprocess.run([sys.executable, *sys.argv], check=False).returncode)
    texts, parts = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}, blocks()
    if given.check:
        old = [
            f"{name} in {path.name}"
            for path, names in DOCUMENTS.items()
            for name in names
            if replaced(texts[path], {name: parts[name]}) != texts[path]
        ]
        old += [path.relative_to(ROOT).as_posix() for path in stale_pages()]
        old += [INDEX.relative_to(ROOT).as_posix()] if INDEX.read_text(encoding="utf-8") != index() else []
        sys.exit(f"out of date: {', '.join(old)}; run python benchmarks/readme.py" if old else 0)
    for path, names in DOCUMENTS.items():
        path.write_text(replaced(texts[path], {name: parts[name] for name in names}), encoding="utf-8")
    for folder in (PAGES, MESSAGE_PAGES):
        folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in stale_pages():
        if path in made:
            path.write_text(made[path], encoding="utf-8")
        else:
            path.unlink()


if __name__ == "__main__":
    main()
