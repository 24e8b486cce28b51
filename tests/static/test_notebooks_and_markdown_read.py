"""Details of notebooks and Markdown: program lines, locations, and rejected documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.static.sources import code_blocks
from pytest_amp_check.static.sources.source_files import Unreadable


def notebook(*cells: Any, metadata: Any = None, **more: Any) -> str:
    """Return the text of a notebook. A string is a code cell."""
    made = [{"cell_type": "code", "source": cell} if isinstance(cell, str) else cell for cell in cells]
    return json.dumps({"cells": made, **({} if metadata is None else {"metadata": metadata}), **more})


def texts(*cells: Any, metadata: Any = None) -> list[str]:
    return [block.text for block in code_blocks.split_blocks("a.ipynb", notebook(*cells, metadata=metadata))]


class TestCells:
    @pytest.mark.parametrize(
        "metadata",
        [
            None,
            {},
            [],
            "python",
            {"language_info": {"name": "python"}},
            {"language_info": {"name": "ipython3"}},
            {"language_info": {"name": "Python"}},
            {"language_info": {}, "kernelspec": {"language": "python"}},
            {"kernelspec": {"language": "python"}},
            {"kernelspec": {"language": 3}},
            {"language_info": {"name": "python"}, "kernelspec": {"language": "R"}},
        ],
    )
    def test_a_notebook_is_in_python_unless_it_says_otherwise(self, metadata: Any) -> None:
        assert texts("x = 1", metadata=metadata) == ["x = 1\n"]

    @pytest.mark.parametrize(
        "metadata",
        [
            {"language_info": {"name": "R"}},
            {"kernelspec": {"language": "julia"}},
            {"language_info": {"name": "scala"}, "kernelspec": {"language": "python"}},
        ],
    )
    def test_a_notebook_in_another_language_has_no_program(self, metadata: Any) -> None:
        assert texts("x = 1", metadata=metadata) == []

    @pytest.mark.parametrize(
        ("cell", "expected"),
        [
            ({"cell_type": "code", "source": "x = 1"}, ["x = 1\n"]),
            ({"cell_type": "code", "source": ["x = 1\n", "y = 2"]}, ["x = 1\ny = 2\n"]),
            ({"cell_type": "code", "source": ["x = 1\n", 3, None, "y = 2"]}, ["x = 1\ny = 2\n"]),
            ({"cell_type": "code", "source": "x = 1\r\ny = 2\r"}, ["x = 1\ny = 2\n"]),
            ({"cell_type": "code", "input": "x = 1"}, ["x = 1\n"]),
            ({"cell_type": "code", "input": "x = 1", "language": "python"}, ["x = 1\n"]),
            ({"cell_type": "code", "input": "x = 1", "language": "R"}, []),
            ({"cell_type": "code", "source": "x = 1", "metadata": {"vscode": {"languageId": "python"}}}, ["x = 1\n"]),
            ({"cell_type": "code", "source": "x = 1", "metadata": {"vscode": {"languageId": "sql"}}}, []),
            ({"cell_type": "code", "source": "x = 1", "metadata": {"vscode": {}}}, ["x = 1\n"]),
            ({"cell_type": "code", "source": "x = 1", "metadata": {"vscode": 3}}, ["x = 1\n"]),
            ({"cell_type": "code", "source": "x = 1", "metadata": []}, ["x = 1\n"]),
            ({"cell_type": "code", "source": 3}, []),
            ({"cell_type": "code", "source": None}, []),
            ({"cell_type": "code"}, []),
            ({"cell_type": "markdown", "source": "x = 1"}, []),
            ({"source": "x = 1"}, []),
            (["x = 1"], []),
            (None, []),
        ],
    )
    def test_a_cell_is_code_in_python_unless_it_says_otherwise(self, cell: Any, expected: list[str]) -> None:
        assert [block.text for block in code_blocks.split_blocks("a.ipynb", json.dumps({"cells": [cell]}))] == expected

    def test_cells_are_counted_with_those_that_are_no_code(self) -> None:
        text = notebook("a = 1", {"cell_type": "markdown", "source": "#"}, "\nb = 2\nc = 3")
        (block,) = code_blocks.split_blocks("a.ipynb", text)
        assert block.text == "a = 1\n\nb = 2\nc = 3\n"
        assert block.line_positions == [(1, 1, 0), (3, 1, 0), (3, 2, 0), (3, 3, 0)]
        assert code_blocks.notebook_cells(text) == {1: "a = 1", 3: "\nb = 2\nc = 3"}

    def test_cells_of_worksheets_come_after_those_of_the_notebook(self) -> None:
        sheets = [{"cells": [{"cell_type": "code", "input": "b = 2"}]}, 3, {"cells": None}]
        text = json.dumps({"cells": [{"cell_type": "code", "source": "a = 1"}], "worksheets": sheets})
        assert [block.text for block in code_blocks.split_blocks("a.ipynb", text)] == ["a = 1\nb = 2\n"]
        assert [block.text for block in code_blocks.split_blocks("a.ipynb", json.dumps({"worksheets": sheets}))] == [
            "b = 2\n"
        ]

    def test_a_number_that_python_does_not_read_is_reported_at_the_first_line(self) -> None:
        with pytest.raises(Unreadable, match=r"^a notebook is JSON, and this is not: Exceeds the limit") as raised:
            code_blocks.split_blocks("a.ipynb", '{\n"cells": ' + "9" * 5000 + "}")
        assert raised.value.line == 1

    @pytest.mark.parametrize(
        ("text", "reason", "line"),
        [
            ("", "a notebook is JSON, and this is empty", 1),
            (" \n\t", "a notebook is JSON, and this is empty", 1),
            ("{", "a notebook is JSON, and this is not: Expecting property name enclosed in double quotes", 1),
            ('{\n"cells": [\n}', "a notebook is JSON, and this is not: Expecting value", 3),
            ("[" * 200_000, "its JSON cannot be read: it is nested too deeply", 1),
            ("[]", "it is JSON, but no notebook", 1),
            ("3", "it is JSON, but no notebook", 1),
            ("{}", "it is JSON, but no notebook: it has no list of cells", 1),
            ('{"cells": {}}', "it is JSON, but no notebook: it has no list of cells", 1),
            ('{"worksheets": 3}', "it is JSON, but no notebook: it has no list of cells", 1),
        ],
    )
    def test_what_is_no_notebook(self, text: str, reason: str, line: int) -> None:
        with pytest.raises(Unreadable) as raised:
            code_blocks.split_blocks("a.ipynb", text)
        assert (raised.value.reason, raised.value.line) == (reason, line)
        assert code_blocks.notebook_cells(text) == {}
        # Code that cannot be located cannot be searched, and is analyzed.
        assert code_blocks.code_bytes("a.ipynb", text.encode()) == b"\0"
        (finding,) = check_source(text, "a.ipynb")
        assert (finding.code, finding.line) == ("AMP903", line)
        assert reason in finding.message


class TestMagics:
    @pytest.mark.parametrize(
        ("cell", "rows"),
        [
            ("%matplotlib inline\nx = 1", ["", "x = 1"]),
            ("if a:\n    %cd data\nx = 1", ["if a:", "    pass", "x = 1"]),
            ("files = !ls\nx = 1", ["files = get_ipython()", "x = 1"]),
            ("a, b = %sql select \\\n    1\nx = 1", ["a, b = get_ipython()", "", "x = 1"]),
            ("!ls \\\n    -l \\\n    -a\nx = 1", ["", "", "", "x = 1"]),
            ("!ls \\", [""]),
            ("x = 1\n!ls \\", ["x = 1", ""]),
            ("?torch\ntorch?\ntorch.nn??\nx = 1", ["", "", "", "x = 1"]),
            ("f(x)?\na[0]?\ntorch.*?\nx = 1", ["", "", "", "x = 1"]),
            ("/f x\n,f x\n;f x\nx = 1", ["", "", "", "x = 1"]),
            ("%time x = 1", ["x = 1"]),
            ("  %timeit -n 10 -r3 x = 1", ["x = 1"]),
            ("%timeit -n 10 -t -q x = 1", ["x = 1"]),
            ("%prun x = 1", ["x = 1"]),
            ("%time\nx = 1", ["", "x = 1"]),
            ("%time ls(\nx = 1", ["", "x = 1"]),
            ("pip install torch\nx = 1", ["", "x = 1"]),
            ("cd data\nls data\nx = 1", ["", "", "x = 1"]),
            ("x = (1\n    % 2)\n!ls", ["x = (1", "    % 2)", ""]),
            ("x = [1,\n!ls\n2]", None),
            ("x = '''\n!ls\n'''\n!ls", ["x = '''", "!ls", "'''", ""]),
            ("x = 1 # '''\n!ls", ["x = 1 # '''", ""]),
            ("x = 'it\\'s' # (\n!ls", ["x = 'it\\'s' # (", ""]),
            ('x = "(" + "\\""\n!ls', ['x = "(" + "\\""', ""]),
            ("x = 1 + \\\n    2\n!ls", ["x = 1 + \\", "    2", ""]),
            ("x = )\n!ls", None),
            ("x != 1\n!ls", ["x != 1", ""]),
            ("%%time\nx = 1", ["", "x = 1"]),
            ("%%time", [""]),
            ("\n%%capture out\n%%time\nx = 1", ["", "", "", "x = 1"]),
            ("%%time\n\n%%capture\nx = 1", ["", "", "", "x = 1"]),
            ("%%time\n!ls\nx = 1", ["", "", "x = 1"]),
            ("    x = 1\n    if x:\n        y = 2", ["x = 1", "if x:", "    y = 2"]),
            ("    x = 1\ny = 2", ["x = 1", "y = 2"]),
        ],
    )
    def test_the_lines_of_a_cell_as_python(self, cell: str, rows: list[str] | None) -> None:
        (block,) = code_blocks.split_blocks("a.ipynb", notebook(cell))
        assert (block.parse_error is not None) is (rows is None)
        if rows is not None:
            assert block.text == "\n".join(rows) + "\n"
        assert block.line_positions is not None
        assert [line for _, line, _ in block.line_positions] == list(range(1, len(cell.split("\n")) + 1))

    @pytest.mark.parametrize(
        ("cell", "cuts"),
        [
            ("x = 1", [0]),
            ("%time x = 1", [6]),
            ("  %time x = 1", [8]),
            ("    x = 1\n    y = 2\nz = 3", [4, 4, 0]),
            ("%timeit -n 10 x = 1\ny = 2", [14, 0]),
            ("\tx = 1", [1]),
        ],
    )
    def test_the_characters_that_are_cut_off_before_a_line(self, cell: str, cuts: list[int]) -> None:
        (block,) = code_blocks.split_blocks("a.ipynb", notebook(cell))
        assert block.line_positions is not None
        assert [cut for _, _, cut in block.line_positions] == cuts

    @pytest.mark.parametrize(
        ("cell", "written"),
        [
            ("%%writefile a.py\nx = 1", ["\nx = 1\n"]),
            ("%%writefile 'a.py'\nx = 1", ["\nx = 1\n"]),
            ('%%file "a.py"\nx = 1', ["\nx = 1\n"]),
            ("%%file -a a.py\nx = 1\n", ["\nx = 1\n"]),
            ("%%python\nx = 1", ["\nx = 1\n"]),
            ("%%pypy\nx = 1", ["\nx = 1\n"]),
            ("%%python3 -c\nx = 1", ["\nx = 1\n"]),
            ("%%writefile a.txt\nx = 1", []),
            ("%%writefile a.pyx\nx = 1", []),
            ("%%writefile a.pyX\nx = 1", []),
            ("%%time\n\n%%bash\nx = 1", []),
            ("%%writefile a.py\nx = (", []),
            ("%%writefile a.py\n!ls", []),
            ("%%bash\nx = 1", []),
            ("%%python2\nx = 1", []),
            ("%%timeit2\nx = 1", []),
            ("%%\nx = 1", []),
        ],
    )
    def test_what_a_cell_writes_is_a_program_of_its_own(self, cell: str, written: list[str]) -> None:
        assert texts(cell) == written
        assert texts("a = 1", cell, "b = 2") == ["a = 1\nb = 2\n", *written]

    def test_what_is_broken_is_said_by_its_line_in_the_program(self) -> None:
        blocks = code_blocks.split_blocks("a.ipynb", notebook("a = 1\nb = 2", "c = 3\nd = (\n", "e = )"))
        (block,) = blocks
        assert block.parse_error is not None
        line, reason, _ = block.parse_error
        assert line == 4
        assert "'(' was never closed" in reason

    def test_a_cell_in_another_language_behind_a_magic_is_none_of_the_program(self) -> None:
        assert texts("%sql\nselect 1 from x", "a = 1") == ["a = 1\n"]
        assert texts("%md\nso it is (\n", "a = 1") == ["a = 1\n"]
        assert texts("\n%r\nx <- c(1", "a = 1") == ["a = 1\n"]


def shown(text: str) -> list[str]:
    """Return the programs in a Markdown text that pass the prescan."""
    return [block.text for block in code_blocks.split_blocks("a.md", text)]


SPEAKS = "autocast(x)"


class TestMarkdown:
    @pytest.mark.parametrize(
        "info",
        [
            "python",
            "Python",
            "py",
            "python3",
            "py3",
            " python",
            "python title=x",
            "python, x",
            "{python}",
            "{.python}",
            "{code-block} python",
            "{code-cell} python3",
            "{code} python",
            "{ python }",
            "python:x",
        ],
    )
    def test_blocks_that_are_said_to_be_python(self, info: str) -> None:
        assert shown(f"```{info}\n{SPEAKS}\n```\n") == [SPEAKS + "\n"]

    @pytest.mark.parametrize(
        "info", ["", "pycon", "python-repl", "python.x", "python+x", "pyi", "bash", "ipython", "x python", "py2"]
    )
    def test_other_blocks(self, info: str) -> None:
        assert shown(f"```{info}\n{SPEAKS}\n```\n") == []

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (f"~~~python\n{SPEAKS}\n~~~", [SPEAKS]),
            (f"````python\n{SPEAKS}\n```\n````", []),
            (f"```python\n{SPEAKS}\n~~~\n```", []),
            (f"```python\n{SPEAKS}\n`````", [SPEAKS]),
            (f"```python\n{SPEAKS}\n``` x\n```", []),
            (f"```python\n{SPEAKS}", [SPEAKS]),
            (f"```python\n{SPEAKS}\n   ```\nx", [SPEAKS]),
            (f"``` `python`\n{SPEAKS}\n```", []),
            (f"~~~ python `x`\n{SPEAKS}\n~~~", [SPEAKS]),
            (f"``python\n{SPEAKS}\n``", []),
            (f"> ```python\n> {SPEAKS}\n> ```", [SPEAKS]),
            (f"> ```python\n> {SPEAKS}\nx", [SPEAKS]),
            (f"> > ```python\n> > {SPEAKS}\n> x\n", [SPEAKS]),
            (f">```python\n>{SPEAKS}\n>```", [SPEAKS]),
            (f"   > ```python\n   > {SPEAKS}\n", [SPEAKS]),
            (f"- ```python\n  {SPEAKS}\n  ```", [SPEAKS]),
            (f"12. ```python\n    {SPEAKS}\n    ```", [SPEAKS]),
            (f"* + ```python\n    {SPEAKS}\n    ```", [SPEAKS]),
            (f"1) ```python\n   {SPEAKS}\n   ```", [SPEAKS]),
            (f"-```python\n{SPEAKS}\n```", []),
            (f"  ```python\n  {SPEAKS}\n    x = 1\n  ```", None),
            (f"  ```python\n{SPEAKS}\n  ```", [SPEAKS]),
            (f"\t```python\n\t{SPEAKS}\n\t```", [SPEAKS]),
            (f"\t```python\n  \t{SPEAKS}\n\t```", [SPEAKS]),
            (f"\t```python\n    {SPEAKS}\n\t```", [SPEAKS]),
            # A blank fills one column of the four up to the tab stop.
            (f"-     ```python\n \t  {SPEAKS}\n      ```", [SPEAKS]),
            (f"  ```python\n  if x:\n      {SPEAKS}\n  ```", [f"if x:\n    {SPEAKS}"]),
            (f"  ```python\nX = {SPEAKS}\n  ```", [f"X = {SPEAKS}"]),
            (f"> - ```python\n>   {SPEAKS}\n>   ```", [SPEAKS]),
            # MkDocs: an admonition, and a tab.
            (f'!!! note "Loss"\n    ```python\n    {SPEAKS}\n    ```\n', [SPEAKS]),
            (f'=== "PyTorch"\n\n    ```python\n    if x:\n        {SPEAKS}\n    ```\n', [f"if x:\n    {SPEAKS}"]),
            (f">- ```python\n>  {SPEAKS}\n>  ```", [SPEAKS]),
            (f"- > ```python\n  > if x:\n  >     {SPEAKS}\n  > ```", [f"if x:\n    {SPEAKS}"]),
            ("```python\n```", []),
            ("```python\nx = 1\n```", []),
            (f"```python\n{SPEAKS}\nx = (\n```", []),
            (f"```python\n{SPEAKS}\n```\n```python\n{SPEAKS}\n```", [SPEAKS, SPEAKS]),
            (f"```bash\nx\n```\n```python\n{SPEAKS}\n```", [SPEAKS]),
        ],
    )
    def test_where_a_block_begins_and_ends(self, text: str, expected: list[str] | None) -> None:
        # A block is indented as a whole, so that deeper lines in it are invalid Python.
        assert shown(text) == [each + "\n" for each in expected or []]

    def test_a_text_that_no_encoding_has_is_searched_as_well(self) -> None:
        assert check_source(f"```python\n{SPEAKS}  # \ud800\n```\n", "a.md") == []

    @pytest.mark.parametrize(
        ("text", "places"),
        [
            (f"a\n```python\n{SPEAKS}\ny\n```", [(None, 3, 0), (None, 4, 0)]),
            (f"> ```python\n> {SPEAKS}\n>   # x\n", [(None, 2, 2), (None, 3, 2)]),
            (f"- ```python\n  {SPEAKS}\n\n  y = 1\n  ```", [(None, 2, 2), (None, 3, 0), (None, 4, 2)]),
            (f"\t```python\n\t{SPEAKS}\n    y = 1\n", [(None, 2, 1), (None, 3, 4), (None, 4, 0)]),
            (f"  ```python\n    {SPEAKS}\n    y = 1\n  ```", []),
        ],
    )
    def test_where_the_lines_of_a_block_stand(self, text: str, places: list[tuple[None, int, int]]) -> None:
        found = code_blocks.split_blocks("a.md", text)
        assert [place for block in found for place in block.line_positions or []] == places

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("```python\nx = 1\n```", "x = 1\n"),
            ("~~~PY\nx = 1\n~~~", "x = 1\n"),
            ("```\nx = 1\n```", ""),
            ("```bash\nx\n```\npython", ""),
            ("python", ""),
            ("~~~\npy\n~~~", ""),
            ("``` python\nx = 1\n```\n```py\ny = 2\n```", "x = 1\n\ny = 2\n"),
        ],
    )
    def test_what_is_looked_at_before_anything_is_parsed(self, text: str, code: str) -> None:
        assert code_blocks.code_bytes("a.md", text.encode()) == code.encode()


@pytest.mark.parametrize(
    ("path", "text", "size"),
    [
        ("a.py", "autocast(x)\n", 12),
        ("a.ipynb", notebook("autocast(x)", "y = 1"), 18),
        # The cells of a notebook together, including the files that they write.
        ("a.ipynb", notebook("autocast(x)", "%%file a.py\nautocast(x)\nyy = 1"), 41),
        ("a.md", "```python\nautocast(x)\n```\n```python\nx = 1\n```", 18),
    ],
)
def test_how_much_code_there_is(path: str, text: str, size: int) -> None:
    assert code_blocks.split_blocks(path, text, size)
    with pytest.raises(Unreadable, match=f"^it has {size} bytes of code, which is more than max-file-size allows: "):
        code_blocks.split_blocks(path, text, size - 1)


def test_a_finding_that_ends_in_another_cell_ends_where_it_begins() -> None:
    cells = ("import torch\nscaler = torch.amp.GradScaler()", "f(torch.cuda.amp.GradScaler(")
    findings = check_source(notebook(*cells), "a.ipynb")
    assert [(found.code, found.cell, found.line) for found in findings] == [("AMP903", 2, 1)]
    assert findings[0].site.line == findings[0].site.end_line
