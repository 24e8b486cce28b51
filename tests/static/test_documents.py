"""Findings in notebooks, one program across cells, and in Markdown, one program for each block, with locations."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marks import MISTAKES, marks
from warm import run_command, run_pytest

from pytest_amp_check import check_paths, check_source
from pytest_amp_check.protocol.byte_sizes import LARGEST_FILE
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.static.settings import FileSelection, Settings
from pytest_amp_check.static.sources import code_blocks

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["pytester"]
Cells = set[tuple[int | None, int, str]]
Cell = str | dict[str, Any]

SETUP = """\
import torch
from torch.nn.utils import clip_grad_norm_
from mine import model, loader, criterion
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
"""
LOOP = """\
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # AMP201
    scaler.step(optimizer)
    scaler.update()
"""
CLIP = 6


def code(source: str | list[str], **more: Any) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source} | more


def prose(source: str, kind: str = "markdown") -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": source}


def cells_of(*cells: Cell) -> list[dict[str, Any]]:
    return [code(cell) if isinstance(cell, str) else cell for cell in cells]


def notebook(*cells: Cell, language: str | None = "python", indent: int | None = 1) -> str:
    """Return the text of a notebook. A string is a code cell."""
    metadata: dict[str, Any] = {}
    if language is not None:
        metadata = {"kernelspec": {"name": "k", "language": language}, "language_info": {"name": language}}
    whole = {"cells": cells_of(*cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=indent)


def found(text: str, name: str = "train.ipynb", options: Settings | None = None) -> Cells:
    return {(f.cell, f.line, f.code) for f in check_source(text, name, options)}


def marked(*cells: Cell) -> Cells:
    """Return the marks of the code cells of a notebook."""
    return {
        (number, line, code)
        for number, cell in enumerate(cells_of(*cells), 1)
        if cell["cell_type"] == "code"
        for line, code in marks("".join(cell["source"]))
    }


def markdown(text: str) -> Cells:
    findings = check_source(text, "README.md")
    assert all(f.cell is None for f in findings)
    return {(None, f.line, f.code) for f in findings}


def marked_lines(text: str) -> Cells:
    return {(None, line, code) for line, code in marks(text)}


def amp_check(*arguments: str, where: Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, cwd=where, stdin=(given or "").encode())


# The cells of a notebook.


def test_cells_are_one_program_and_findings_are_where_they_stand_in_them() -> None:
    cells: list[Cell] = [prose("# Training"), SETUP, prose("scaler.scale(loss).backward()", "raw"), LOOP]
    (finding,) = check_source(notebook(*cells), "some/train.ipynb")
    assert {(finding.cell, finding.line, finding.code)} == marked(*cells) == {(4, CLIP, "AMP201")}
    assert finding.filename == "some/train.ipynb"
    assert (finding.site.column, finding.site.end_column) == (4, 4 + len("clip_grad_norm_(model.parameters(), 1.0)"))
    assert [(step.site.cell, step.site.line) for step in finding.trace] == [(4, 5), (4, 6), (4, 7)]


def test_a_helper_in_one_cell_is_followed_from_another() -> None:
    helper = "def back(loss):\n    scaler.scale(loss).backward()\n"
    loop = LOOP.replace("scaler.scale(loss).backward()", "back(loss)")
    (finding,) = check_source(notebook(SETUP, helper, loop), "train.ipynb")
    assert (finding.cell, finding.line, finding.code) == (3, CLIP, "AMP201")
    scaled = finding.trace[0].site
    assert (scaled.cell, scaled.line) == (2, 2)
    assert scaled.caller is not None
    assert (scaled.caller.cell, scaled.caller.line) == (3, 5)


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
def test_cells_have_the_numbers_that_ruff_gives_them(tmp_path: Path) -> None:
    """Each code cell has an old name for this tool, and an undefined name for ruff."""
    both = "%matplotlib inline\nwith torch.cuda.amp.autocast(): pass\n"
    cells: list[Cell] = [
        prose("x"),
        both,
        prose("y", "raw"),
        "",
        "%%bash\nls",
        "%%time\n" + both,
        code(both, id="a"),
        prose("z"),
        both,
    ]
    path = tmp_path / "train.ipynb"
    path.write_text(notebook(*cells), encoding="utf-8")
    options = ["--no-cache", "--isolated", "--select", "F821", "--output-format", "json"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    theirs = {(f["cell"], f["location"]["row"]) for f in json.loads(done.stdout)}
    ours = {(f.cell, f.line) for f in check_paths([str(path)]).findings if f.code == "AMP901"}
    assert theirs == ours == {(2, 2), (6, 3), (7, 2), (9, 2)}


@pytest.mark.parametrize(
    "line",
    [
        "%matplotlib inline",
        "%env X='1",
        "!nvidia-smi",
        "! ls | grep 'it",
        "!pip install -q torch \\\n    numpy \\\n    (more",
        "!!ls",
        "%pip install torch",
        "files = !ls",
        "a, b = !ls",
        "table['x'] = %sql select 1",
        "result: list = %timeit -o f()",
        "model?",
        "?model",
        "model.fit??",
        "torch.*?",
        "%timeit -n 10 -r3 model(x)",
        "%prun -l 7 model(x)",
        "/print x",
        "pip install torch",
        "cd data",
        "cd ..",
    ],
)
def test_what_only_ipython_understands_is_passed_over(line: str) -> None:
    """An IPython line alone, among Python and in a block does not move the following code."""
    indented = "    " + line.replace("\n", "\n    ") + "\n"
    automatic = line.startswith(("pip", "cd"))
    for cells in ([SETUP, line + "\n" + LOOP], [line, SETUP, LOOP], [SETUP + line, LOOP], [SETUP, "\n  " + line, LOOP]):
        assert found(notebook(*cells)) == marked(*cells), cells
    if not automatic:
        cells = [SETUP, "if colab:\n" + indented + LOOP]
        assert found(notebook(*cells)) == marked(*cells), cells


@pytest.mark.parametrize("magic", ["%time ", "%timeit ", "%timeit -n 1 -r 1 ", "%prun "])
def test_what_a_magic_runs_is_read_where_it_stands(magic: str) -> None:
    loop = LOOP.replace("clip_grad", magic + "clip_grad")
    (finding,) = check_source(notebook(SETUP, loop), "train.ipynb")
    assert (finding.cell, finding.line, finding.code) == (2, CLIP, "AMP201")
    row = loop.split("\n")[CLIP - 1]
    assert row[finding.site.column : finding.site.end_column] == "clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize(
    "python",
    [
        'text = """\n!ls\n%time\nwhat?\n"""\n',
        "text = '''\n!ls '' \\''' %\n'''\n",
        "number = (100\n    % 7\n    )\n",
        "print('loss=%d' % 1, \"what?\")\n",
        "text = '! % ?'  # what?\n",
        "number = 7 \\\n    % 2\n",
        "x = {'a': [1,\n\n    2]}\nnumber %= 2\n",
        "if number != 2: pass\n",
    ],
)
def test_python_that_looks_like_a_magic_is_python(python: str) -> None:
    (block,) = code_blocks.split_blocks("x.ipynb", notebook("!ls\n" + python))
    assert (block.text, block.parse_error) == ("\n" + python, None)
    lines = python.count("\n")
    assert found(notebook(SETUP, f"!ls\n{python}{LOOP}")) == {(2, 1 + lines + CLIP, "AMP201")}


@pytest.mark.parametrize(
    "head", ["%%time", "%%amp run", "%%capture out", "%%timeit -n 1", "\n\n%%time", "%%capture\n%%time", "%%prun"]
)
def test_magics_that_run_their_cell_leave_it_as_it_is(head: str) -> None:
    cells = [SETUP, head + "\n" + LOOP]
    assert found(notebook(*cells)) == marked(*cells) != set()


@pytest.mark.parametrize(
    "head", ["%%bash", "%%html", "%%writefile notes.txt", "%%javascript", "%%capture\n%%bash", "%%x"]
)
def test_cells_of_other_magics_are_passed_over(head: str) -> None:
    assert found(notebook(SETUP, head + "\n" + LOOP)) == set()
    cells = [SETUP, head + "\nls -l 'x | (\n", LOOP]
    assert found(notebook(*cells)) == marked(*cells)


@pytest.mark.parametrize(
    "head", ["%%writefile train.py", "%%file src/train.py", "%%writefile -a 'train.py'", "%%python3"]
)
def test_a_file_that_a_cell_writes_is_a_program_of_its_own(head: str) -> None:
    cells = [head + "\n" + SETUP + LOOP, "%%writefile notes.py\nno python (", "import torch"]
    assert found(notebook(*cells)) == marked(*cells) != set()
    # The definitions of the magic are unknown in the cells.
    assert (
        found(notebook(head + "\n" + SETUP, LOOP.replace("clip_grad_norm_(", "clip(").replace("AMP201", ""))) == set()
    )


def test_a_region_in_one_written_file_may_be_entered_around_another() -> None:
    train = SETUP + LOOP.replace('    with torch.autocast("cuda"):\n    ', "").replace(
        "    clip_grad", "    # clip_grad"
    )
    assert {c for _, _, c in found(notebook("%%writefile train.py\n" + train))} == {"AMP110"}
    model = "import torch\nregion = torch.autocast('cuda')\n"
    assert found(notebook("%%writefile train.py\n" + train, "%%writefile model.py\n" + model)) == set()


def test_a_cell_that_begins_with_a_magic_and_is_no_python_is_in_another_language() -> None:
    cells = [SETUP, "%sql\nselect * from runs", "%md\n# Training's loop", LOOP]
    assert found(notebook(*cells)) == marked(*cells)


def test_await_stands_in_a_cell() -> None:
    loop = LOOP.replace("for x", "async for x").replace("criterion(model(x), y)", "await criterion(model(x), y)")
    cells = [SETUP + "await model.load()\nasync with model:\n    pass\n", loop]
    assert found(notebook(*cells)) == marked(*cells) != set()


def test_the_indentation_of_a_whole_cell_is_taken_from_it() -> None:
    indented = "\n" + "".join(f"  {line}\n" for line in LOOP.splitlines())
    (finding,) = check_source(notebook(SETUP, indented), "train.ipynb")
    assert (finding.cell, finding.line, finding.site.column) == (2, CLIP + 1, 6)


def test_a_cell_ends_where_it_ends() -> None:
    """Neither a backslash nor an open bracket continues in the next cell."""
    for end in ("x = 1 \\", "x = (1", "if x:", "@decorator", 'x = """'):
        (finding,) = check_source(notebook("import torch", SETUP + end, "2)\nLOOP"), "train.ipynb")
        assert (finding.code, finding.cell) == ("AMP903", 2)


def test_a_cell_that_is_no_python_is_one_finding_at_its_line() -> None:
    text = notebook(prose("x"), SETUP, "import torch\nif torch:\n", "def f(:", LOOP)
    (finding,) = check_source(text, "train.ipynb")
    assert (finding.code, finding.cell, finding.line) == ("AMP903", 3, 2)
    assert re.search(r"line [13-9]", finding.message) is None


# Analyzed notebooks.


@pytest.mark.parametrize("language", ["python", "ipython", "Python 3", None])
def test_notebooks_in_python_are_read(language: str | None) -> None:
    assert found(notebook(SETUP, LOOP, language=language)) == {(2, CLIP, "AMP201")}


@pytest.mark.parametrize("language", ["R", "julia", "scala", "bash"])
def test_notebooks_in_other_languages_are_silent(language: str) -> None:
    assert found(notebook(SETUP, LOOP, "no (python", language=language)) == set()


def test_cells_in_other_languages_are_silent() -> None:
    other = code("SELECT (autocast", metadata={"vscode": {"languageId": "sql"}})
    cells: list[Cell] = [SETUP, other, LOOP]
    assert found(notebook(*cells)) == marked(*cells)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("indent", [None, 1])
def test_source_is_a_string_or_a_list_of_lines(ends: str, indent: int | None) -> None:
    text, loop = SETUP.replace("\n", ends), LOOP.replace("\n", ends)
    expected = {(2, CLIP, "AMP201")}
    assert found(notebook(text, loop, indent=indent)) == expected
    lines = [code(part.splitlines(keepends=True)) for part in (text, loop)]
    assert found(notebook(*lines, indent=indent)) == expected
    assert found(notebook(text, loop, indent=indent).replace("\n", "\r\n")) == expected


def test_a_mark_of_utf_8_is_no_part_of_the_json(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(notebook(SETUP, LOOP), encoding="utf-8-sig")
    assert [(f.cell, f.line, f.code) for f in check_paths([str(path)]).findings] == [(2, CLIP, "AMP201")]


def test_the_format_of_old_notebooks_is_read() -> None:
    cells = [{"cell_type": "code", "language": "python", "input": text, "outputs": []} for text in (SETUP, LOOP)]
    sheets = [{"cells": [prose("x"), cells[0]]}, {"cells": [cells[1]]}]
    old = {"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": sheets}
    assert found(json.dumps(old)) == {(3, CLIP, "AMP201")}


WORD = b' "autocast(x)" '
NO_NOTEBOOKS = {
    "not JSON": b"{nope" + WORD,
    "cut off": notebook(SETUP, LOOP).encode()[:-30],
    "a conflict": b"{\n<<<<<<< HEAD\n" + WORD,
    "a list": b"[" + WORD + b"]",
    "a string": WORD,
    "an object": b'{"a":' + WORD + b"}",
    "another encoding": notebook(SETUP, LOOP + "# caf\xe9").encode("utf-8").replace(b"\\u00e9", b"\xe9"),
    "UTF-16": notebook(SETUP, LOOP).encode("utf-16"),
    "a null byte": b'{"cells": [\0' + WORD + b"]}",
    "nested too deeply": b"[" * 200_000 + WORD,
    "a null in a cell": notebook(SETUP, "x = '\0' # autocast(").encode(),
    "half a character in a cell": notebook(SETUP, "x = '\ud800' # autocast(").encode(),
}


@pytest.mark.parametrize("kind", NO_NOTEBOOKS)
def test_what_is_no_notebook_is_one_finding(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train.ipynb"
    path.write_bytes(NO_NOTEBOOKS[kind])
    (finding,) = check_paths([str(path)]).findings
    assert (finding.code, finding.filename) == ("AMP903", str(path))
    assert "\n" not in finding.message and "Traceback" not in finding.message
    assert [f.code for f in check_paths([str(tmp_path)]).findings] == ["AMP903"]
    done = amp_check("check", "train.ipynb", where=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_broken_notebook_that_speaks_of_nothing_is_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "data.ipynb"
    path.write_bytes(b"{nope")
    for paths in ([str(tmp_path)], [str(path)]):
        (finding,) = check_paths(paths).findings
        assert finding.code == "AMP903" and finding.line == 1


ODD: list[Any] = [
    {"cells": []},
    {"cells": [None, 1, "x", [], {}]},
    {"cells": [{"cell_type": "code"}], "metadata": None},
    {"cells": [{"cell_type": "code", "source": None}], "metadata": {"kernelspec": None, "language_info": []}},
    {"cells": [{"cell_type": "code", "source": [1, None, "x = 1"], "metadata": []}]},
    {"cells": [{"cell_type": "code", "source": 7}], "metadata": {"language_info": {"name": 3}}},
    {"worksheets": [None, {"cells": 3}]},
]


@pytest.mark.parametrize("content", ODD)
def test_an_odd_notebook_is_silent(content: Any) -> None:
    assert check_source(json.dumps(content), "x.ipynb") == []


@pytest.mark.parametrize("content", [notebook(), notebook("", "\n\n", "%matplotlib inline", "# x")])
def test_an_empty_notebook_is_silent(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    assert check_paths([str(path)]).findings == []


# The prescan.


def picture(size: int) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": "iVBORw0KGgo" + "A/b+" * (size // 4)}}


def test_what_cells_put_out_does_not_count_against_the_size(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(notebook(SETUP, code(LOOP, outputs=[picture(LARGEST_FILE + 1)])))
    assert [(f.cell, f.line, f.code) for f in check_paths([str(tmp_path)]).findings] == [(2, CLIP, "AMP201")]


@pytest.mark.parametrize("name", ["train.ipynb", "train.md", "train.py"])
@pytest.mark.parametrize("named", [True, False])
def test_too_much_code_is_said(tmp_path: Path, name: str, *, named: bool) -> None:
    texts = {
        "train.ipynb": notebook(SETUP, LOOP),
        "train.md": f"```python\n{SETUP}{LOOP}```\n",
        "train.py": SETUP + LOOP,
    }
    (tmp_path / name).write_text(texts[name])
    size = len(SETUP + LOOP)

    def codes(largest: int) -> list[str]:
        settings = Settings(frozenset({"AMP201", "AMP903"}), largest=largest)
        found = check_paths([str(tmp_path / name if named else tmp_path)], settings).findings
        assert [f.code for f in check_source(texts[name], name, settings)] == [f.code for f in found]
        return [f.code for f in found]

    assert codes(size - 1) == ["AMP903"]
    assert codes(size + 1) == codes(0) == ["AMP201"]


def escaped(text: str) -> str:
    """Escape a JSON text for safe use in HTML, as some programs do."""
    return re.sub("[=<>&']", lambda match: f"\\u{ord(match[0]):04x}", text)


def flat(source: str) -> str:
    return notebook(source, indent=None)


def listed(source: str) -> str:
    return notebook(code(source.splitlines(keepends=True)), indent=1)


def afraid(source: str) -> str:
    return escaped(notebook(code(source.splitlines(keepends=True)), indent=None))


@pytest.mark.exhaustive(every=4)
@pytest.mark.parametrize("write", [flat, listed, afraid])
@pytest.mark.parametrize("rule", [c for c, r in RULES.items() if r.detected_by != RUNTIME and c != "AMP903"])
def test_no_mistake_hides_in_json(tmp_path: Path, rule: str, write: Callable[[str], str]) -> None:
    """The examples of every rule have the same findings in a notebook below a folder as in a script."""
    options = Settings(select=MISTAKES | {rule})
    for number, source in enumerate((RULES[rule].bad_example, RULES[rule].good_example)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "example.ipynb").write_text(write(source), encoding="utf-8")
        there = {(f.cell, f.line, f.code) for f in check_paths([str(folder)], options).findings}
        assert there == {(1, f.line, f.code) for f in check_source(source, "example.py", options)}
        assert number or rule in {c for _, _, c in there}


def test_what_notebooks_print_is_no_code(tmp_path: Path) -> None:
    """A word in an output neither causes a finding nor changes a finding in another file."""
    output = {"output_type": "stream", "name": "stderr", "text": ["FutureWarning: autocast(args)\n", "float16"]}
    (tmp_path / "plots.ipynb").write_text(notebook(code("plot()", outputs=[output])))
    alone = SETUP + LOOP.replace('    with torch.autocast("cuda"):\n    ', "")
    (tmp_path / "train.py").write_text(alone)
    assert "AMP110" in {f.code for f in check_paths([str(tmp_path)]).findings}
    (tmp_path / "plots.ipynb").write_text(notebook("import torch, train\nwith torch.autocast('cuda'): train.run()"))
    assert "AMP110" not in {f.code for f in check_paths([str(tmp_path)]).findings}


# Locations.

MARKED = [p for p in sorted((ROOT / "fixtures").rglob("*.py")) if marks(p.read_text(encoding="utf-8"))]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_notebook_has_the_findings_of_its_script(data: st.DataObject) -> None:
    """A marked script keeps its findings when cut into cells between any statements, among magics and other cells."""
    path = data.draw(st.sampled_from(MARKED))
    script = path.read_text(encoding="utf-8")
    rows = script.split("\n")
    starts = [
        min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))]) - 1
        for statement in ast.parse(script).body
    ]
    cuts = sorted(data.draw(st.sets(st.sampled_from(starts[1:] or [0]), max_size=6)))
    cells: list[Cell] = []
    where: dict[int, tuple[int, int]] = {}
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        cells += data.draw(
            st.lists(st.sampled_from([prose("# x"), prose("(", "raw"), "%%bash\nls (", "!ls"]), max_size=2)
        )
        head = data.draw(
            st.sampled_from([[], ["%%time"], ["", "%%capture x"], ["!ls 'x \\", "  y"], ["%cd x", "", "z?"]])
        )
        where |= {row + 1: (len(cells) + 1, row - start + len(head) + 1) for row in range(start, end)}
        cells.append("\n".join([*head, *rows[start:end]]))

    def place(site: Site) -> tuple[object, ...]:
        end = where[site.end_line] if site.path == "train.py" else (site.cell, site.end_line)
        line = where[site.line] if site.path == "train.py" else (site.cell, site.line)
        return (*line, *end, site.column, site.end_column, site.function)

    def reported(finding: Finding) -> tuple[object, ...]:
        steps = tuple((s.text, *map(place, s.site.list_frames())) for s in finding.trace)
        return (finding.code, finding.message, finding.severity, finding.certain, place(finding.site), steps)

    expected = sorted(map(reported, check_source(script, "train.py")))
    assert sorted(map(reported, check_source(notebook(*cells), "train.ipynb"))) == expected


def test_columns_count_characters_of_the_cell() -> None:
    loop = LOOP.replace("    clip_grad", "    'ä€𝄞'; clip_grad")
    (finding,) = check_source(notebook(SETUP, loop), "train.ipynb")
    assert finding.site.column == 4 + len("'ä€𝄞'; ")


# Suppressions.


@pytest.mark.parametrize("comment", ["# amp: ignore[AMP201] so it is", "# noqa: AMP201", "# amp: ignore"])
def test_comments_silence_in_cells_and_blocks(comment: str) -> None:
    loop = LOOP.replace("# AMP201", comment)
    assert found(notebook(SETUP, loop)) == set()
    assert markdown(f"# x\n\n```python\n{SETUP}{loop}```\n") == set()


def test_a_comment_above_a_statement_silences_it() -> None:
    loop = LOOP.replace("    clip_grad", "    # amp: ignore[AMP201]\n    clip_grad")
    assert found(notebook(SETUP, loop)) == set()
    assert markdown(f"```python\n{SETUP}{loop}```\n") == set()


def test_a_comment_for_the_file_stands_in_the_first_cell() -> None:
    comment = "# amp: ignore-file[AMP201]\n"
    assert found(notebook(comment + SETUP, LOOP)) == set()
    assert found(notebook("%matplotlib inline\n!ls\n" + comment, SETUP, LOOP)) == set()
    assert found(notebook(SETUP, comment + LOOP)) == {(2, 1, "AMP902"), (2, CLIP + 1, "AMP201")}


def test_a_comment_for_the_file_speaks_of_its_block() -> None:
    block = f"```python\n{SETUP}{LOOP}```\n"
    silent = block.replace("```python\n", "```python\n# amp: ignore-file[AMP201]\n")
    assert markdown(silent + block) == marked_lines(silent + block) - {(None, 1 + 1 + 5 + CLIP, "AMP201")}


def test_unused_comments_are_reported_where_they_stand() -> None:
    line = "x = 1  # amp: ignore[AMP201]\n"
    (finding,) = check_source(notebook("!ls", prose("x"), "\n" + line), "train.ipynb")
    assert (finding.cell, finding.line, finding.code) == (3, 2, "AMP902")
    assert line[finding.site.column : finding.site.end_column] == "# amp: ignore[AMP201]"
    (finding,) = check_source(f"- x\n\n  ~~~py\n  {line}  ~~~\n", "x.md")
    assert (finding.line, finding.code, finding.site.column) == (4, "AMP902", 2 + line.index("#"))


# Markdown.

BLOCK = SETUP + LOOP


@pytest.mark.parametrize(
    "info",
    [
        "python",
        "py",
        "python3",
        "Python",
        " python",
        "python:",
        "python title='x'",
        "python {linenos=true}",
        "py\thl_lines='1'",
        "{python}",
        "{.python}",
        "{ .py .annotate }",
        "{code-block} python",
    ],
)
@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_blocks_that_are_said_to_be_python_are_read(info: str, fence: str) -> None:
    text = f"# Title\n\ntext\n{fence}{info}\n{BLOCK}{fence}\n\nmore\n"
    assert markdown(text) == marked_lines(text) != set()


@pytest.mark.parametrize(
    "info", ["", "pycon", "python-console", "python.foo", "pytb", "text", "bash", "{r}", "diff", "pypy"]
)
def test_other_blocks_are_not_read(info: str) -> None:
    assert markdown(f"```{info}\n{BLOCK}```\n") == set()


def test_code_outside_of_a_block_is_not_read() -> None:
    assert markdown(BLOCK) == set()
    assert markdown("\n".join("    " + line for line in BLOCK.split("\n"))) == set()
    assert markdown(f"````markdown\n```python\n{BLOCK}```\n````\n") == set()
    assert markdown(f"``` python `x` ```\n{BLOCK}```\n") == set()


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("   ", "   "),
        ("    ", "    "),
        ("\t", "\t"),
        ("- ", "  "),
        ("1. ", "   "),
        ("12) ", "    "),
        ("1. ", "\t"),
        ("- - ", "    "),
        ("> ", "> "),
        (">", ">"),
        ("> > ", "> > "),
        ("> - ", ">   "),
        ("- > ", "  > "),
    ],
)
def test_blocks_in_lists_and_quotations(first: str, rest: str) -> None:
    inner = "".join(f"{rest}{line}".rstrip() + "\n" for line in BLOCK.replace("\nfor", "\n\nfor").splitlines())
    text = f"text\n\n{first}```python\n{inner}{rest}```\n\nmore\n"
    (finding,) = check_source(text, "x.md")
    assert {(None, finding.line, finding.code)} == marked_lines(text)
    row = text.split("\n")[finding.line - 1]
    assert row[finding.site.column : finding.site.end_column] == "clip_grad_norm_(model.parameters(), 1.0)"
    # The following block is analyzed as usual.
    again = f"{text}\n```python\n{BLOCK}```\n"
    assert markdown(again) == marked_lines(again)


def test_a_block_ends_at_its_fence_at_its_quotation_and_at_the_end() -> None:
    longer = f"````python\n'''\n```\n'''\n{BLOCK}````\n"
    assert markdown(longer) == marked_lines(longer) != set()
    tildes = f"~~~python\n'''\n```\n'''\n{BLOCK}~~~\n"
    assert markdown(tildes) == marked_lines(tildes) != set()
    opened = f"```python\n{BLOCK}"
    assert markdown(opened) == marked_lines(opened) != set()
    quoted = "".join(f"> {line}\n" for line in f"```python\n{BLOCK}".splitlines())
    assert markdown(quoted + "no quotation (\n") == marked_lines(quoted) != set()


def test_each_block_is_alone() -> None:
    text = f"```python\n{SETUP}```\n\n```python\n{LOOP}```\n\n```python\n{BLOCK}```\n"
    lines = {line for _, line, code in markdown(text) if code == "AMP201"}
    assert max(marks(text))[0] in lines
    parts = (
        "```python\nscaler.scale(loss).backward()\n```\n\n```python\nclip_grad_norm_(p, 1.0)\nscaler.step(opt)\n```\n"
    )
    assert markdown(parts) == set()


def test_a_fragment_is_no_mistake() -> None:
    broken = [
        "scaler.scale(loss).backward(\n",
        "    x = autocast(\n",
        ">>> autocast()\n",
        "def f(:\n",
        "autocast(...) -> x\n",
    ]
    for text in broken:
        assert markdown(f"```python\n{text}```\n") == set()
    mixed = f"```python\n{broken[0]}```\n\n```python\n{BLOCK}```\n"
    assert markdown(mixed) == marked_lines(mixed) != set()


def test_a_fragment_leaves_out_what_is_said_around_it() -> None:
    """The surrounding text may describe the region, and an earlier import may define autocast."""
    scaled = "scaler = GradScaler()\nfor x in data:\n    loss = model(x)\n    scaler.scale(loss).backward()\n"
    scaled += "    scaler.step(optimizer)\n    scaler.update()\n"
    assert markdown(f"Wrap the forward pass in `autocast`:\n\n```python\n{scaled}```\n") == set()
    assert markdown("```python\nwith autocast():\n    loss = model(x)\n```\n") == set()


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
def test_line_ends_change_no_line_of_markdown(ends: str) -> None:
    text = f"# x\n\n```python\n{BLOCK}```\n"
    assert markdown(text.replace("\n", ends)) == marked_lines(text) != set()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "utf-16"])
def test_markdown_in_any_encoding_is_no_mistake(tmp_path: Path, encoding: str) -> None:
    text = f"# caf\xe9\n\n```python\n# \xe9\n{BLOCK}```\n"
    (tmp_path / "x.md").write_bytes(text.encode(encoding))
    findings = {(None, f.line, f.code) for f in check_paths([str(tmp_path / "x.md")]).findings}
    assert findings == (set() if encoding == "utf-16" else marked_lines(text))


def test_a_heading_is_no_coding_line(tmp_path: Path) -> None:
    text = f"# On coding: latin-99\n\n```python\n{BLOCK}```\n"
    (tmp_path / "x.md").write_text(text)
    done = amp_check("check", "x.md", where=tmp_path)
    assert "clip_grad_norm_(model.parameters(), 1.0)\n" in done.stdout.replace("  # AMP201", "")
    assert "AMP903" not in done.stdout


def test_documentation_changes_nothing_in_other_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SETUP + LOOP.replace('    with torch.autocast("cuda"):\n    ', ""))
    before = {(f.line, f.code) for f in check_paths([str(tmp_path)]).findings}
    (tmp_path / "README.md").write_text("```python\nwith torch.autocast('cuda'):\n    x.half()\n```\n")
    assert {(f.line, f.code) for f in check_paths([str(tmp_path)]).findings} == before
    assert "AMP110" in {code for _, code in before}


def test_our_own_documentation_is_silent() -> None:
    paths = [str(path) for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"))]
    assert [str(f) for f in check_paths(paths).findings] == []


# Files.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "train.py": SETUP + LOOP,
        "train.ipynb": notebook(prose("x"), SETUP, LOOP),
        "docs/train.md": f"# Training\n\n```python\n{BLOCK}```\n",
        "docs/clean.md": "# autocast\n",
        "docs/train.txt": f"```python\n{BLOCK}```\n",
        ".ipynb_checkpoints/train-checkpoint.ipynb": notebook(SETUP, LOOP),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def names(tree: Path, options: Settings | None = None) -> list[tuple[str, int | None, int, str]]:
    report = check_paths([str(tree)], options)
    return [(Path(f.filename).relative_to(tree).as_posix(), f.cell, f.line, f.code) for f in report.findings]


def test_notebooks_and_markdown_are_found_below_folders(tree: Path) -> None:
    report = check_paths([str(tree)])
    assert report.files == 4
    assert names(tree) == [
        ("docs/train.md", None, 3 + 5 + CLIP, "AMP201"),
        ("train.ipynb", 3, CLIP, "AMP201"),
        ("train.py", None, 5 + CLIP, "AMP201"),
    ]


def test_settings_hold_for_them_as_for_python(tree: Path) -> None:
    ignoring = Settings(per_file_ignores=(("*.ipynb", frozenset({"AMP201"})), ("docs/*", frozenset(RULES))))
    assert [name for name, *_ in names(tree, ignoring)] == ["train.py"]
    assert [name for name, *_ in names(tree, Settings(files=FileSelection(exclude=("docs", "*.ipynb"))))] == [
        "train.py"
    ]
    severe = check_paths([str(tree)], Settings(severity={"AMP201": "info"})).findings
    assert {f.severity for f in severe} == {"info"}


def test_findings_are_in_the_order_of_cells() -> None:
    cells = [SETUP, *[LOOP] * 11]
    findings = check_source(notebook(*cells), "train.ipynb")
    assert [f.cell for f in findings if f.code == "AMP201"] == list(range(2, 13))


# Output.


def test_full_output_shows_the_lines_of_the_cell(tree: Path) -> None:
    done = amp_check("check", "train.ipynb", where=tree)
    assert (done.returncode, done.stderr) == (1, "")
    clip = "clip_grad_norm_(model.parameters(), 1.0)"
    start = f"train.ipynb:cell 3:{CLIP}:5: AMP201 [*] [error] clip-before-unscale: "
    assert done.stdout.startswith(start)
    shown = done.stdout.split("\n")[1:]
    assert shown[:5] == [
        "  |",
        "5 |     scaler.scale(loss).backward()",
        f"6 |     {clip}  # AMP201",
        f"  |     {'^' * len(clip)}",
        "7 |     scaler.step(optimizer)",
    ]
    assert [line for line in shown if re.match(r" +\d\. ", line)] == [
        "    1. train.ipynb:cell 3:5: backward adds gradients multiplied by the loss scale",
        "    2. train.ipynb:cell 3:6: the gradients are clipped",
        "    3. train.ipynb:cell 3:7: the scaler steps the optimizer",
    ]
    # The code frame shows it.
    assert "         scaler.step(optimizer)" not in shown


def test_full_output_names_the_cell_of_a_call(tree: Path) -> None:
    loop = LOOP.replace("scaler.scale(loss).backward()", "back(loss)")
    helper = "def back(loss):\n    scaler.scale(loss).backward()\n"
    (tree / "train.ipynb").write_text(notebook(SETUP, helper, loop))
    shown = amp_check("check", "train.ipynb", where=tree).stdout
    assert "    1. train.ipynb:cell 2:2 (called from train.ipynb:cell 3:5): backward adds gradients" in shown


def test_concise_output(tree: Path) -> None:
    shown = amp_check("check", "--output-format", "concise", ".", where=tree).stdout.split("\n")
    assert [line.split(" AMP")[0] for line in shown[:3]] == [
        "docs/train.md:14:5:",
        "train.ipynb:cell 3:6:5:",
        "train.py:11:5:",
    ]
    assert shown[3] == "Found 3 errors in 4 files."


def test_json_has_the_cell(tree: Path) -> None:
    done = amp_check("check", "--output-format", "json", "train.ipynb", "train.py", where=tree)
    there, here = json.loads(done.stdout)
    assert (there["filename"], there["cell"], there["location"]) == ("train.ipynb", 3, {"row": CLIP, "column": 5})
    assert {(step["filename"], step["cell"]) for step in there["witness"]} == {("train.ipynb", 3)}
    assert here["cell"] is None
    assert {step["cell"] for step in here["witness"]} == {None}


def test_formats_that_know_lines_of_files_alone_name_the_cell_in_words(tree: Path) -> None:
    # The whole source of a cell is one string here, on a line of the JSON.
    rows = (tree / "train.ipynb").read_text(encoding="utf-8").splitlines()
    at = next(number for number, row in enumerate(rows, 1) if "clip_grad_norm_(" in row)
    start = rows[at - 1].index('"', rows[at - 1].index(":")) + 1
    end = len(rows[at - 1].rstrip(",")) + 1
    shown = amp_check("check", "--output-format", "github", "train.ipynb", where=tree).stdout
    place = f"file=train.ipynb,line={at},col={start},endLine={at},endColumn={end}"
    assert f"{place}::cell 3, line 6: `clip_grad_norm_` clips" in shown
    (run,) = json.loads(amp_check("check", "--output-format", "sarif", "train.ipynb", where=tree).stdout)["runs"]
    (result,) = run["results"]
    assert result["message"]["text"].startswith("cell 3, line 6: `clip_grad_norm_` clips")
    whole = {"startLine": at, "startColumn": start, "endLine": at, "endColumn": end}
    assert result["locations"][0]["physicalLocation"]["region"] == whole
    first = result["relatedLocations"][0]
    assert (first["physicalLocation"]["region"], first["message"]["text"][:16]) == (whole, "cell 3, line 5: ")


def test_a_finding_keeps_its_identity_when_cells_move(tree: Path) -> None:
    def identity() -> object:
        (run,) = json.loads(amp_check("check", "--output-format", "sarif", "train.ipynb", where=tree).stdout)["runs"]
        return [result["partialFingerprints"] for result in run["results"]]

    before = identity()
    (tree / "train.ipynb").write_text(notebook(prose("x"), "import sys", SETUP, "\n\n" + LOOP))
    assert identity() == before
    (tree / "train.ipynb").write_text(notebook(SETUP, LOOP.replace("1.0", "2.0")))
    assert identity() != before


def test_a_notebook_on_standard_input(tmp_path: Path) -> None:
    text = notebook(SETUP, LOOP)
    done = amp_check("check", "-", "--stdin-filename", "a/train.ipynb", where=tmp_path, given=text)
    assert done.stdout.startswith(f"a/train.ipynb:cell 2:{CLIP}:5: AMP201 ")
    assert "6 |     clip_grad_norm_(" in done.stdout
    done = amp_check("check", "-", "--stdin-filename", "x.md", where=tmp_path, given=f"```py\n{BLOCK}```\n")
    assert done.stdout.startswith(f"x.md:{6 + CLIP}:5: AMP201 ")


def test_cells_without_a_notebook_have_no_lines() -> None:
    assert code_blocks.notebook_cells("{nope") == {}


# pytest --amp-check.


@pytest.fixture
def project(pytester: pytest.Pytester, tree: Path) -> pytest.Pytester:
    for path in tree.rglob("*"):
        if path.is_file():
            target = pytester.path / path.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return pytester


def items(result: pytest.RunResult) -> list[str]:
    return sorted(line for line in result.outlines if "::" in line)


def test_notebooks_and_markdown_are_items(project: pytest.Pytester) -> None:
    result = run_pytest(project, "--amp-check", "--amp-only=static", "--co", "-q", trains=False)
    assert items(result) == [
        f"{name}::amp-check" for name in ("docs/clean.md", "docs/train.md", "train.ipynb", "train.py")
    ]
    result = run_pytest(project, "--amp-check", "--amp-only=static", trains=False)
    result.assert_outcomes(failed=3, passed=1)
    # The order is up to other plugins.
    for lines in (
        ["*_ amp-check: docs/train.md _*", "docs/train.md:14:5: AMP201 *"],
        ["*_ amp-check: train.ipynb _*", "train.ipynb:cell 3:6:5: AMP201 *", "6 |     clip_grad_norm_(*"],
        ["Found 3 errors in 4 files."],
    ):
        result.stdout.fnmatch_lines(lines)


def test_they_can_be_named_and_left_out(project: pytest.Pytester) -> None:
    result = run_pytest(
        project, "--amp-check", "--amp-only=static", "train.ipynb", "docs/train.md::amp-check", trains=False
    )
    result.assert_outcomes(failed=2)
    result = run_pytest(
        project,
        "--amp-check",
        "--amp-only=static",
        "--co",
        "-q",
        "-o",
        "amp_exclude=docs *.ipynb",
        trains=False,
    )
    assert items(result) == ["train.py::amp-check"]
    project.makeini("[pytest]\ntestpaths = none\namp_check_paths = docs train.ipynb\n")
    project.mkdir("none")
    result = run_pytest(project, "--amp-check", "--amp-only=static", "--co", "-q", trains=False)
    assert items(result) == ["docs/clean.md::amp-check", "docs/train.md::amp-check", "train.ipynb::amp-check"]


def test_without_the_option_they_are_none_of_pytests(project: pytest.Pytester) -> None:
    assert items(run_pytest(project, "--co", "-q", trains=False)) == []
