"""Measure the prose of Python packages and Markdown files: docstrings, names, comments, sentences, glossary words.

Usage:
    prose.py PACKAGE...                      one table row for each path (a folder, a file or LABEL=PATH)
    prose.py --by-package PACKAGE            one more row for each sub-folder with Python files
    prose.py --list 20 PACKAGE               the first 20 offending places of each metric
    prose.py --json PACKAGE                  the same figures as JSON
    prose.py --max question=2 --max names=3 PACKAGE     exit 1 where a figure is above its limit
    prose.py --min comments=40 PACKAGE                  exit 1 where a figure is below its limit
    prose.py --text docs README.md PACKAGE   sentences of Markdown files and of strings in Python files
    prose.py --glossary words.csv PATH...    count words that must not appear any more ("old,new[,scope]")

Only the standard library is used. Nothing is imported: files are parsed.

Metrics of Python files (shares are percentages of all docstrings, or of all names):
    question   docstrings whose first word is Whether/What/Where/How/Who/Which, or "The one(s)"
    headless   docstrings with a clause in the place of a noun: what, whatever, whoever, that of, those of, the one(s)
    pronouns   docstrings whose first paragraph has two or more bare pronouns (see bare_pronouns)
    pron/100w  bare pronouns in each 100 words of docstring text
    clause     docstrings that begin with a full sentence about a noun ("A module is cast ..."), not a noun phrase
    third      function docstrings that begin with a third-person verb ("Returns ...")
    form       docstrings in none of the accepted forms: question + clause + third + first word a preposition
    names      functions, methods, classes and attributes whose whole name is one participle or one common word
    one-word   names of one word
    comments   comment lines in each 1,000 code lines, without file headers and tool pragmas
    median     median number of words of a docstring
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

# Word lists. They are closed classes of English and common programming words, not words of one project.

QUESTION = re.compile(r"(whether|what|where|how|who|which|the ones?)\b", re.IGNORECASE)

HEADLESS = re.compile(r"\b(what|whatever|whoever|whichever|those of|that of|the ones?)\b", re.IGNORECASE)

PREPOSITIONS = set(
    "of in on at by for from to with without within into onto over under above below between among against"
    " through during before after since until about around behind beside besides beyond near along across"
    " upon per via out off up down".split()
)
AUXILIARIES = set(
    "is are was were be been being am has have had do does did can could may might must shall should will would"
    " isn't aren't doesn't don't can't won't cannot".split()
)
CONJUNCTIONS = set("and or but nor so yet if unless because while though although as than when whenever where".split())
DETERMINERS = set(
    "a an the this that these those each every all any some no both either neither another other such what which whose"
    " its their his her our my your one two three several many few more most".split()
)
RELATIVES = set("that which who whom whose where when".split())
PERSONAL = set("it its itself they them their theirs themselves".split())
DEMONSTRATIVES = set("this that these those".split())
ADVERBS = set("not also only then now here there too again already ever never always still just even alone".split())
FUNCTION_WORDS = (
    PREPOSITIONS
    | AUXILIARIES
    | CONJUNCTIONS
    | RELATIVES
    | PERSONAL
    | ADVERBS
    | {"the", "a", "an", "i", "we", "you", "he", "she"}
)

# Verbs that commonly begin docstrings, in the base form. Third person is derived from them.
VERBS = set(
    """accept access accumulate act add adjust advance align allocate allow analyze analyse annotate append apply assert
    assign attach avoid backtrack begin bind bound break bring build bump cache calculate call cancel canonicalize
    capture carry cast change check choose clean cleanup clear clip clone close coerce collapse collect combine commit
    compare compile complete compute concatenate configure confirm connect construct consume contain continue convert
    copy count create decide declare decode decorate define delegate delete demand describe deserialize destroy detach
    detect determine diff disable discard dispatch display divide do download drop dump emit emulate enable encode end
    enforce ensure enter enumerate escape estimate evaluate examine exclude execute exit expand expect explain export
    expose extend extract fail fall feed fetch fill filter finalize find finish fix flatten flush follow force forget
    fork format forward free gather generate get give go group guess handle hash have help hide hold hook identify
    ignore implement import include increment index infer inherit initialize inject insert inspect install instantiate
    interpret introduce invalidate invoke iterate join judge keep know launch lead learn leave let lift limit link list
    listen load locate lock log look lookup lower make manage map mark match measure memoize merge modify monitor move
    narrow negate normalize note notify obtain offer open operate order output override overwrite pack parse partition
    pass patch perform pick play populate pop prepare prepend prevent print process produce propagate provide prune
    pull push put query quote raise rank reach read rebuild receive recompute record recurse reduce refactor refer
    refresh refuse register reject release reload remember remove rename render reorder repeat replace replay report
    represent request require reserve reset resize resolve restore restrict resume retrieve return reveal reverse
    revert rewrite roll rotate round run sample save say scale scan schedule search see select send separate serialize
    serve set settle setup show shrink shut signal simplify simulate skip sleep solve sort spawn specialize split
    spread stand start state step stop store strip subclass substitute subtract sum summarize support suppress swap
    switch sync synchronize tag take tell terminate test throw toggle tokenize trace track train transfer transform
    translate traverse treat trigger trim truncate try turn unify union unpack unregister unwrap update upgrade use
    validate verify visit wait walk warn watch widen work wrap write yield""".split()
)
THIRD = (
    {verb + "s" for verb in VERBS}
    | {verb + "es" for verb in VERBS if verb.endswith(("s", "x", "z", "ch", "sh", "o"))}
    | {verb[:-1] + "ies" for verb in VERBS if verb.endswith("y")}
)
# Forms in -s that are nouns as often: they count as verbs only where a determiner or a pronoun follows.
NOUN_OR_VERB = {
    "calls",
    "changes",
    "checks",
    "counts",
    "copies",
    "ends",
    "files",
    "fixes",
    "forms",
    "groups",
    "handles",
    "hooks",
    "imports",
    "indexes",
    "joins",
    "keeps",
    "links",
    "lists",
    "loads",
    "locks",
    "logs",
    "marks",
    "matches",
    "names",
    "notes",
    "opens",
    "orders",
    "outputs",
    "patches",
    "places",
    "plays",
    "prints",
    "queries",
    "ranks",
    "reads",
    "records",
    "reports",
    "requests",
    "runs",
    "samples",
    "scales",
    "sets",
    "shows",
    "sorts",
    "spans",
    "starts",
    "states",
    "steps",
    "stops",
    "stores",
    "sums",
    "takes",
    "tests",
    "tags",
    "traces",
    "tracks",
    "turns",
    "updates",
    "uses",
    "views",
    "works",
    "writes",
    "wraps",
    "walks",
}

IRREGULAR = set(
    """told held kept made known seen shown given taken found left lost met said spoken written begun gone done drawn
    born sent built bound chosen felt fed forgotten fallen grown heard hidden lent led lain meant paid sat sold stood
    stuck sunk taught thrown thought torn understood undone won worn woken broken caught dealt driven flown frozen got
    hung risen rung shaken spent stolen struck slept swept fit laid lit rent sought spun sprung withdrawn borne""".split()
)
# One form is base and participle: a verb as the name of a function is right, as the name of an attribute it is not.
SAME_FORM = set("read put cut hit let shut spread hurt split come run become overcome".split())
# -ed and -ing words that are no participles, are nouns of programming, or are flags that the standard library uses.
NOT_PARTICIPLES = set(
    (
        "seed feed need speed weed breed bleed indeed exceed proceed succeed embed shed bed red wed sled hundred sacred naked"
        " string ring king spring wing bring swing sling sting ping warning mapping setting encoding binding heading"
        " padding spacing naming typing logging timing ordering indexing embedding building meaning rating ceiling"
        " finding listing opening beginning evening morning bearing routing training testing rendering"
        " enabled disabled closed deprecated required sorted reversed expected"
    ).split()
)
COMMON_NOUNS = set(
    "thing things place places way ways part parts piece pieces stuff matter matters side sides turn turns bit bits lot"
    " fact facts affair affairs something anything nothing everything somebody anybody nobody".split()
)
# Closed-class words: adverbs, prepositions, determiners, pronouns, bare adjectives of quantity and manner.
COMMON_WORDS = (
    set(
        """apart alone again around above below beside behind before after anew elsewhere here there now ever never
        alike whole most many much few least less more other others another both either neither each every own same
        such of in on at by from within without until whenever wherever through past once twice together late early
        near far away aside along across ahead already always often seldom only just even else otherwise however
        whatever whoever somehow somewhat lasting certain sure likely mixed vague""".split()
    )
    | PERSONAL
    | DEMONSTRATIVES
    | {"what", "who", "whose", "how", "why", "where", "when", "which", "whether"}
)

PRAGMA = re.compile(
    r"#\s*(noqa|type:|pragma|pylint|mypy|fmt:|isort|ruff|pyright|pyre|!|-\*-|flake8|coding[:=]|amp:|nosec|fixme)",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
TOKEN = re.compile(r"[A-Za-z][A-Za-z'’-]*|[.,;:()!?]")


def plain(text: str) -> str:
    """The text without code spans, roles, doctests, field lists and literal blocks."""
    kept = []
    for line in text.splitlines():
        strip = line.strip()
        if strip.startswith((">>>", "...", ":param", ":return", ":rtype", ":type", ":raises", "Args:", "@", ".. ")):
            continue
        kept.append(line)
    text = "\n".join(kept)
    text = re.sub(r":[\w:]+:`[^`]*`", "CODE", text)
    text = re.sub(r"``[^`]*``", "CODE", text)
    return re.sub(r"`[^`]*`", "CODE", text)


def first_paragraph(text: str) -> str:
    """The text up to the first blank line."""
    return re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]


def first_sentence(text: str) -> str:
    """The first sentence of a paragraph."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", first_paragraph(text), maxsplit=1)[0]


def bare_pronouns(text: str) -> list[str]:
    """The pronouns that stand for something the text does not name beside them.

    - it, its, they, them, their, itself, themselves: each one counts.
    - this, that, these, those: count where no noun follows, that is before punctuation or a function word.
      "that" after a content word is a relative clause or a conjunction ("the tests that end"), and does not count.
    - one, ones: count as pronouns ("the one that", "another one"), not as numbers ("one file", "one of", "one by one").
    - which: counts behind a preposition ("of which", "in which") or with no noun before it.
    """
    tokens = TOKEN.findall(text)
    low = [token.lower() for token in tokens]
    found = []
    for i, word in enumerate(low):
        before = low[i - 1] if i else ""
        after = low[i + 1] if i + 1 < len(low) else "."
        ends = not after[0].isalpha() or after in FUNCTION_WORDS
        content_before = bool(before) and before[0].isalpha() and before not in FUNCTION_WORDS | DETERMINERS
        if word in PERSONAL:
            found.append(word)
        elif word in DEMONSTRATIVES:
            if word == "that" and (content_before or before in {"so", "such", "now", "except", "in", "given"}):
                continue
            if ends:
                found.append(word)
        elif word == "ones":
            found.append(word)
        elif word == "one":
            if before in {"this", "that", "another", "other", "each", "every", "which"} or (
                ends
                and after not in {"of", "or", "and", "by", "at", "for", "to", "per", "level", "more", "after"}
                and before != "by"
            ):
                found.append(word)
        elif word == "which":
            if before in PREPOSITIONS or not before or (before[0].isalpha() and not content_before):
                found.append(word)
    return found


def form_of(text: str, is_function: bool) -> str:
    """The form of a docstring: "question", "clause", "third", "preposition", or "" for an accepted one."""
    sentence = first_sentence(plain(text))
    if QUESTION.match(sentence):
        return "question"
    words = [word.lower() for word in WORD.findall(sentence)]
    if not words:
        return ""
    first = words[0]
    second = words[1] if len(words) > 1 else ""
    if is_function and first in THIRD and (first not in NOUN_OR_VERB or second in (DETERMINERS - RELATIVES) | PERSONAL):
        return "third"
    if first in PREPOSITIONS | CONJUNCTIONS - {"as"}:
        return "preposition"
    if first in VERBS and first not in {"have", "do"}:
        return ""
    # A clause has a finite auxiliary before any relative word, comma or colon.
    for token in TOKEN.findall(sentence)[1:]:
        low = token.lower()
        if low in RELATIVES or low in {"whether", "what", "how", "if", "as", "to"} or token in ",:;(.":
            break
        if low in AUXILIARIES - {"be", "been", "being"}:
            return "clause"
    return ""


def parts_of(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def is_vague(name: str, kind: str) -> bool:
    """True where the whole name is one participle, one generic noun or one closed-class word."""
    words = parts_of(name)
    if len(words) != 1:
        return False
    word = words[0]
    if word in COMMON_WORDS or word in COMMON_NOUNS or word in IRREGULAR:
        return True
    if word in SAME_FORM:
        return kind == "attribute"
    if word in NOT_PARTICIPLES or len(word) < 5 or word.endswith(("string", "mapping", "thing")):
        return False
    return bool(re.search(r"[^aeiou]ed$|[aeiouy]ed$|ing$", word)) and not word.endswith("eed")


class Measures:
    """The figures of a group of Python files, with the places of what is counted."""

    def __init__(self) -> None:
        self.files = self.code_lines = self.comments = 0
        self.docstrings = self.words = self.pronoun_words = 0
        self.lengths: list[int] = []
        self.names: Counter[str] = Counter()
        self.count: Counter[str] = Counter()
        self.places: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._seen: set[str] = set()

    def add(self, path: Path, shown: str) -> None:
        """Add a file; one that does not parse is skipped."""
        try:
            with tokenize.open(path) as file:
                source = file.read()
            tree = ast.parse(source)
        except (SyntaxError, ValueError, UnicodeDecodeError):
            return
        self.files += 1
        self._lines(source)
        self._walk(tree, shown)

    def _lines(self, source: str) -> None:
        code: set[int] = set()
        docs: set[int] = set()
        comments: list[tuple[int, str]] = []
        at_start = True
        try:
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type == tokenize.COMMENT:
                    comments.append((token.start[0], token.string))
                elif token.type in (
                    tokenize.NL,
                    tokenize.NEWLINE,
                    tokenize.INDENT,
                    tokenize.DEDENT,
                    tokenize.ENDMARKER,
                ):
                    at_start = at_start or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
                else:
                    rows = range(token.start[0], token.end[0] + 1)
                    if token.type == tokenize.STRING and at_start:
                        docs.update(rows)
                    else:
                        code.update(rows)
                    at_start = False
        except (tokenize.TokenError, IndentationError):
            pass
        first = min(code | docs, default=0)
        self.code_lines += len(code)
        self.comments += sum(
            1 for row, text in comments if row > first and not PRAGMA.match(text) and text.strip("# -=*")
        )

    def _walk(self, tree: ast.Module, shown: str) -> None:
        self._docstring(tree, shown, "module")
        stack: list[tuple[ast.AST, str]] = [(tree, "module")]
        while stack:
            node, inside = stack.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    if not child.name.startswith("__"):
                        self._name(child.name, "method" if inside == "class" else "function", shown, child.lineno)
                    self._docstring(child, shown, "function")
                    stack.append((child, "function"))
                elif isinstance(child, ast.ClassDef):
                    self._name(child.name, "class", shown, child.lineno)
                    self._docstring(child, shown, "class")
                    stack.append((child, "class"))
                else:
                    targets = []
                    if isinstance(child, ast.Assign):
                        targets = [t for target in child.targets for t in ast.walk(target)]
                    elif isinstance(child, ast.AnnAssign):
                        targets = [child.target]
                    for target in targets:
                        if isinstance(target, ast.Name) and inside == "class" and isinstance(target.ctx, ast.Store):
                            self._name(target.id, "attribute", shown, target.lineno)
                        elif (
                            isinstance(target, ast.Attribute)
                            and isinstance(target.value, ast.Name)
                            and target.value.id == "self"
                            and isinstance(target.ctx, ast.Store)
                        ):
                            self._name(target.attr, "attribute", shown, target.lineno)
                    stack.append((child, inside))

    def _name(self, name: str, kind: str, shown: str, line: int) -> None:
        if name.startswith("__"):
            return
        key = f"{shown}:{kind}:{name}"
        if kind == "attribute":
            if key in self._seen:
                return
            self._seen.add(key)
        self.count["all names"] += 1
        if len(parts_of(name)) == 1:
            self.count["one-word"] += 1
        if is_vague(name, kind):
            self.count["names"] += 1
            self.names[name] += 1
            self.places["names"].append((f"{shown}:{line}", f"{kind} {name}"))

    def _docstring(self, node: ast.AST, shown: str, kind: str) -> None:
        text = ast.get_docstring(node)  # type: ignore[arg-type]
        if not text:
            return
        place = (f"{shown}:{getattr(node, 'lineno', 1)}", first_sentence(text).replace("\n", " ")[:140])
        self.docstrings += 1
        clean = plain(text)
        words = WORD.findall(clean)
        self.lengths.append(len(text.split()))
        self.words += len(words)
        self.pronoun_words += len(bare_pronouns(clean))
        form = form_of(text, kind == "function")
        if form:
            self.count["form"] += 1
            self.count[form] += 1
            self.places[form].append(place)
        if HEADLESS.search(clean):
            self.count["headless"] += 1
            self.places["headless"].append(place)
        if len(bare_pronouns(first_paragraph(clean))) >= 2:
            self.count["pronouns"] += 1
            self.places["pronouns"].append(place)

    def figures(self) -> dict[str, float]:
        """The figures by the name of the metric."""
        docs = max(self.docstrings, 1)
        names = max(self.count["all names"], 1)
        share = {
            key: 100 * self.count[key] / docs for key in ("question", "headless", "pronouns", "clause", "third", "form")
        }
        return {
            "files": self.files,
            "code": self.code_lines,
            "docs": self.docstrings,
            "question": share["question"],
            "headless": share["headless"],
            "pronouns": share["pronouns"],
            "pron/100w": 100 * self.pronoun_words / max(self.words, 1),
            "clause": share["clause"],
            "third": share["third"],
            "form": share["form"],
            "n.names": self.count["all names"],
            "names": 100 * self.count["names"] / names,
            "one-word": 100 * self.count["one-word"] / names,
            "comments": 1000 * self.comments / max(self.code_lines, 1),
            "median": statistics.median(self.lengths) if self.lengths else 0,
        }


def python_files(path: Path, exclude: re.Pattern[str] | None) -> list[Path]:
    """The Python files at a path, in order, without excluded ones."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [file for file in files if file.suffix == ".py" and not (exclude and exclude.search(file.as_posix()))]


def labelled(argument: str) -> tuple[str, Path]:
    """Split LABEL=PATH; without a label the name of the path is taken."""
    label, found, path = argument.partition("=")
    return (label, Path(path)) if found else (Path(argument).name or argument, Path(argument))


def table(rows: list[tuple[str, dict[str, float]]]) -> str:
    """A table of figures as aligned text."""
    heads = list(rows[0][1])
    cells = [["", *heads]]
    for label, figures in rows:
        cells.append(
            [label]
            + [
                f"{v:.0f}" if k in {"files", "code", "docs", "n.names", "median"} else f"{v:.1f}"
                for k, v in figures.items()
            ]
        )
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=False)))
        for row in cells
    )


# Text mode.


def markdown_sentences(text: str) -> list[tuple[int, str]]:
    """The sentences of the paragraphs and list items of a Markdown text, each with its line."""
    found: list[tuple[int, str]] = []
    block: list[str] = []
    start = 0
    fenced = False

    def flush() -> None:
        joined = " ".join(block)
        block.clear()
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*_\[])", joined):
            if sentence.strip():
                found.append((start, sentence.strip()))

    for number, line in enumerate(text.splitlines(), 1):
        strip = line.strip()
        if strip.startswith(("```", "~~~")):
            flush()
            fenced = not fenced
        elif fenced or strip.startswith(("|", "<", "![", "#")) or line.startswith("    ") or not strip:
            flush()
        elif re.match(r"([-*+]|\d+\.)\s", strip):
            flush()
            start = number
            block.append(re.sub(r"^([-*+]|\d+\.)\s+", "", strip))
        else:
            if not block:
                start = number
            block.append(strip)
    flush()
    return found


def user_strings(tree: ast.Module) -> list[tuple[int, str]]:
    """The strings of a program that hold at least four words and are no docstrings, each with its line."""
    docs = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            docs.add(body[0].value)
    found = []
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner.update(node.values)
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "CODE" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs and node not in inner:
            text = node.value
        else:
            continue
        if len(WORD.findall(text)) >= 4 and " " in text.strip() and "\n" not in text.strip():
            found.append((node.lineno, text.strip()))
    return found


FREE_RELATIVE = re.compile(r"(What|Whatever|Who|Whoever|Where|Whose|Whether)\b(?!.*\?$)")


def text_figures(
    files: list[tuple[str, Path]], limit: int
) -> tuple[dict[str, dict[str, float]], dict[str, list[tuple[str, str]]]]:
    """Sentence figures of each file, and the places of long sentences and of free-relative subjects."""
    figures: dict[str, dict[str, float]] = {}
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for shown, path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            sentences = user_strings(ast.parse(text)) if path.suffix == ".py" else markdown_sentences(text)
        except SyntaxError:
            continue
        lengths = [len(WORD.findall(re.sub(r"`[^`]*`", "CODE", s))) for _, s in sentences]
        long = [(f"{shown}:{line}", s) for (line, s), n in zip(sentences, lengths, strict=False) if n > limit]
        free = [(f"{shown}:{line}", s) for line, s in sentences if FREE_RELATIVE.match(s)]
        pronouns = [(f"{shown}:{line}", s) for line, s in sentences if len(bare_pronouns(plain(s))) >= 3]
        places["long"] += long
        places["free"] += free
        places["pronouns3"] += pronouns
        figures[shown] = {
            "sentences": len(sentences),
            "long": len(long),
            "free": len(free),
            "pronouns3": len(pronouns),
            "median": statistics.median(lengths) if lengths else 0,
        }
    return figures, places


def glossary_counts(files: list[tuple[str, Path]], glossary: Path) -> dict[str, Counter[str]]:
    """How often each old word of a glossary appears in each file.

    Rows are "old,new[,scope]"; scope is "ident" (words of identifiers), "text" (comments, docstrings, strings,
    Markdown) or "both". An old word of several words is only looked for in text. Lines that begin with # are skipped.
    """
    rows = []
    with glossary.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(line for line in file if line.strip() and not line.startswith("#")):
            if row[0].strip().lower() != "old":
                rows.append((row[0].strip(), (row[2].strip() if len(row) > 2 else "both") or "both"))
    patterns = {old: re.compile(r"(?<![A-Za-z])" + re.escape(old) + r"(?![A-Za-z])", re.IGNORECASE) for old, _ in rows}
    counts: dict[str, Counter[str]] = {old: Counter() for old, _ in rows}
    for shown, path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        idents: Counter[str] = Counter()
        prose = text
        if path.suffix == ".py":
            fragments = []
            try:
                for token in tokenize.generate_tokens(io.StringIO(text).readline):
                    if token.type == tokenize.NAME:
                        idents.update(set(parts_of(token.string)))
                    elif token.type in (tokenize.STRING, tokenize.COMMENT) or tokenize.tok_name[token.type].startswith(
                        "FSTRING_M"
                    ):
                        fragments.append(token.string)
            except (tokenize.TokenError, IndentationError):
                pass
            prose = "\n".join(fragments)
        for old, scope in rows:
            n = 0
            if scope in {"ident", "both"} and " " not in old:
                n += idents[old.lower()]
            if scope in {"text", "both"}:
                n += len(patterns[old].findall(prose))
            if n:
                counts[old][shown] += n
    return counts


def text_files(paths: list[str], exclude: re.Pattern[str] | None) -> list[tuple[str, Path]]:
    """The Markdown and Python files at paths, each with the name to show."""
    found = []
    for argument in paths:
        _, path = labelled(argument)
        base = path.parent if path.is_file() else path
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in {".md", ".py"})
        for file in files:
            if not (exclude and exclude.search(file.as_posix())):
                found.append(
                    (f"{path.name}/{file.relative_to(base).as_posix()}" if path.is_dir() else path.as_posix(), file)
                )
    return found


def check_limits(rows: list[tuple[str, dict[str, float]]], highest: list[str], lowest: list[str]) -> list[str]:
    """Sentences about figures outside of their limits."""
    failed = []
    for limits, above in ((highest, True), (lowest, False)):
        for limit in limits:
            key, _, number = limit.partition("=")
            for label, figures in rows:
                if key in figures and (figures[key] > float(number) if above else figures[key] < float(number)):
                    failed.append(f"{label}: {key} is {figures[key]:.1f}, {'above' if above else 'below'} {number}")
    return failed


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="[LABEL=]PATH")
    parser.add_argument("--by-package", action="store_true", help="add a row for each sub-folder")
    parser.add_argument("--depth", type=int, default=2, help="depth of sub-folders for --by-package (default: 2)")
    parser.add_argument("--exclude", metavar="REGEX", help="skip files whose path matches")
    parser.add_argument("--list", type=int, default=0, metavar="N", help="show N offending places of each metric")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--max", action="append", default=[], metavar="METRIC=N", help="exit 1 above this value")
    parser.add_argument("--min", action="append", default=[], metavar="METRIC=N", help="exit 1 below this value")
    parser.add_argument("--text", action="store_true", help="measure sentences of Markdown files and of strings")
    parser.add_argument(
        "--limit", type=int, default=35, metavar="WORDS", help="longest sentence of --text (default: 35)"
    )
    parser.add_argument(
        "--glossary", type=Path, metavar="CSV", help="count the old words of a glossary: old,new[,scope]"
    )
    given = parser.parse_args()
    exclude = re.compile(given.exclude) if given.exclude else None

    if given.glossary:
        counts = glossary_counts(text_files(given.paths, exclude), given.glossary)
        if given.json:
            print(json.dumps(counts, indent=1))
        else:
            for old, by_file in sorted(counts.items(), key=lambda pair: -sum(pair[1].values())):
                print(f"{sum(by_file.values()):6}  {old}  ({len(by_file)} files)")
                for name, n in by_file.most_common(given.list):
                    print(f"        {n:5}  {name}")
        total = float(sum(sum(c.values()) for c in counts.values()))
        failed = check_limits([("all", {"glossary": total})], given.max, given.min)
        print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
        return 1 if failed else 0

    if given.text:
        figures, places = text_figures(text_files(given.paths, exclude), given.limit)
        sums = {k: sum(f[k] for f in figures.values()) for k in ("sentences", "long", "free", "pronouns3")}
        sums["median"] = statistics.median([f["median"] for f in figures.values() if f["sentences"]] or [0])
        rows = [(name, f) for name, f in figures.items() if f["long"] + f["free"] + f["pronouns3"]] + [("all", sums)]
    else:
        rows = []
        places = {}
        for argument in given.paths:
            label, path = labelled(argument)
            groups: dict[str, Measures] = {label: Measures()}
            for file in python_files(path, exclude):
                relative = file.relative_to(path if path.is_dir() else path.parent)
                shown = f"{label}/{relative.as_posix()}"
                into = [label]
                if given.by_package:
                    folders = relative.parent.parts[: given.depth]
                    into += ["  " + "/".join(folders[: n + 1]) for n in range(len(folders))]
                for name in into:
                    groups.setdefault(name, Measures()).add(file, shown)
            rows += [(name, groups[name].figures()) for name in [label, *sorted(set(groups) - {label})]]
            for metric, found in groups[label].places.items():
                places.setdefault(metric, []).extend(found)

    if given.json:
        print(json.dumps({"rows": dict(rows), "places": {k: v[: given.list] for k, v in places.items()}}, indent=1))
    else:
        print(table(rows))
        for metric, found in places.items() if given.list else ():
            print(f"\n{metric}: {len(found)}")
            if metric == "names":
                tally = Counter(text.split()[-1] for _, text in found)
                print("  " + ", ".join(f"{name} {n}" for name, n in tally.most_common(given.list * 2)))
            step = max(1, len(found) // given.list)
            for where, text in found[::step][: given.list]:
                print(f"  {where}: {text}")
    failed = check_limits(rows, given.max, given.min)
    print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
