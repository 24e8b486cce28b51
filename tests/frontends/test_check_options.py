"""Effects of the options of amp-check check, in real runs of the command."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import pytest
from warm import run_command

from pytest_amp_check.protocol.rules import RULES

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
OFF = RULES["AMP701"].bad_example
OLD = RULES["AMP901"].bad_example
#: Seconds after which a run that should continue by itself counts as hanging.
PATIENCE = 120


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AMP_CHECK_CACHE", "0")


def amp_check(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_command("check", *argv, env=os.environ | (env or {}))


def codes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the codes of the findings, in order."""
    return [json.loads(line)["code"] for line in done.stdout.splitlines()]


LINES = ("--output-format", "json-lines")


def test_rules_are_added_to_those_that_are_selected() -> None:
    Path("train.py").write_text(f"{BAD}\n\n{OFF}")
    assert set(codes(amp_check("train.py", *LINES))) == {"AMP201"}
    assert set(codes(amp_check("train.py", *LINES, "--extend-select", "AMP701"))) == {"AMP201", "AMP701"}
    assert set(codes(amp_check("train.py", *LINES, "--select", "AMP202", "--extend-select", "AMP701"))) == {"AMP701"}


def test_files_are_left_out_besides_those_that_are_excluded() -> None:
    for name in ("a.py", "b.py", "c.py"):
        Path(name).write_text(BAD)
    Path("amp-check.toml").write_text('exclude = ["a.py"]\n')
    done = amp_check(".", "--show-files", "--extend-exclude", "b.py")
    assert (done.returncode, done.stdout) == (0, "c.py\n")
    assert amp_check(".", "--show-files", "--isolated").stdout == "a.py\nb.py\nc.py\n"


@pytest.mark.parametrize(("flag", "line"), [("--show-files", "train.py\n"), ("--show-settings", "select =")])
def test_what_is_listed_goes_to_the_file_too(flag: str, line: str) -> None:
    Path("train.py").write_text(BAD)
    listed = amp_check(".", flag).stdout
    done = amp_check(".", flag, "-o", "listed.txt")
    assert (done.returncode, done.stdout) == (0, "")
    written = Path("listed.txt").read_text()
    assert line in written
    # The settings show the source of the file name.
    assert [each for each in written.splitlines() if "output-file" not in each] == [
        each for each in listed.splitlines() if "output-file" not in each
    ]


def test_what_git_ignores_can_be_checked() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    Path(".gitignore").write_text("ignored.py\n")
    Path("ignored.py").write_text(BAD)
    assert amp_check(".", "--show-files").stdout == ""
    assert amp_check(".", "--show-files", "--no-respect-gitignore").stdout == "ignored.py\n"
    assert codes(amp_check(".", *LINES, "--no-respect-gitignore")) == ["AMP201"]


def test_comments_can_be_overlooked() -> None:
    Path("train.py").write_text("# amp: ignore-file[AMP201]\n" + BAD)
    assert amp_check("train.py").returncode == 0
    done = amp_check("train.py", *LINES, "--ignore-noqa")
    assert (done.returncode, codes(done)) == (1, ["AMP201"])


@pytest.mark.parametrize(
    ("level", "fails"),
    [("error", {"error"}), ("warning", {"error", "warning"}), ("info", {"error", "warning", "info"})],
)
def test_what_fails_is_chosen(level: str, fails: set[str]) -> None:
    Path("train.py").write_text(BAD)
    for severity in ("error", "warning", "info"):
        done = amp_check("train.py", *LINES, "--fail-level", level, "--severity", f"AMP201={severity}")
        assert done.returncode == (severity in fails)
        assert codes(done) == ["AMP201"]


def test_output_goes_into_a_file_without_colour() -> None:
    Path("train.py").write_text(BAD)
    done = amp_check("train.py", "-o", "found.txt", env={"FORCE_COLOR": "1"})
    assert (done.returncode, done.stdout) == (1, "")
    found = Path("found.txt").read_text()
    assert found.startswith("train.py:")
    assert found.endswith("Found 1 error in 1 file.\n[*] 1 fixable with --fix.\n")
    done = amp_check("train.py", "-o", "no/such/folder/found.txt")
    assert done.returncode == 2
    assert done.stderr.endswith("found.txt cannot be written: no such file or directory\n")


def test_quiet_shows_findings_alone_and_silent_nothing() -> None:
    Path("train.py").write_text(BAD)
    plain = amp_check("train.py", "--output-format", "concise").stdout.splitlines()
    done = amp_check("train.py", "-q", "--output-format", "concise")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (1, plain[:1], "")
    done = amp_check("train.py", "-s")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    Path("empty").mkdir()
    done = amp_check("empty", "-s")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    done = amp_check("empty", "-s", "--allow-no-files")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_colour_is_chosen() -> None:
    Path("train.py").write_text(BAD)
    assert "\x1b[" in amp_check("train.py", "--color", "always", env={"NO_COLOR": "1"}).stdout
    assert "\x1b[" not in amp_check("train.py", "--color", "never", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in amp_check("train.py", env={"FORCE_COLOR": "1"}).stdout


def test_verbose_says_what_was_followed() -> None:
    Path("engine.py").write_text("def train_one(scaler, loss, optimizer):\n    scaler.scale(loss).backward()\n")
    Path("train.py").write_text(
        "import torch\nfrom engine import train_one\n\n\n"
        "def main(model, optimizer, batches):\n    scaler = torch.amp.GradScaler('cuda')\n"
        "    for x in batches:\n        optimizer.zero_grad()\n        train_one(scaler, model(x), optimizer)\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    done = amp_check(".", "-v")
    lines = done.stderr.splitlines()
    at = lines.index("amp-check: read train.py:5 main")
    assert lines[at + 1] == "amp-check:   led to engine.py:1 train_one"


def test_settings_are_shown_with_where_they_come_from() -> None:
    Path("amp-check.toml").write_text('select = ["AMP2"]\n')
    shown = amp_check("--show-settings", "--jobs", "2", env={"AMP_CHECK_EXIT_ZERO": "1"}).stdout.splitlines()
    assert f'select = ["AMP2"]  # select in {Path("amp-check.toml").absolute()}' in shown
    assert "jobs = 2  # --jobs" in shown
    assert "exit-zero = true  # the variable AMP_CHECK_EXIT_ZERO" in shown
    assert 'fail-level = "warning"  # the default' in shown


FINISHES = """\
import torch
from mylib.amp import finish


def main(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).sum()
        finish({arguments})
"""


@pytest.mark.parametrize(
    ("arguments", "events", "found"),
    [
        ("loss, optimizer, scaler, model.parameters()", "scales,backward,unscales,clips,steps,updates,clears", []),
        ("loss, optimizer, scaler, model.parameters()", "scales,backward,clips,steps,updates,clears", ["AMP201"]),
        ("loss, optimizer, scaler=scaler, module=model", "scales,backward,clips,steps,updates,clears", ["AMP201"]),
        ("loss, optimizer, scaler", "scales,backward,steps,clears", ["AMP206"]),
        ("loss, optimizer, scaler", "backward,steps,updates,clears", ["AMP203"]),
        # A wrapper call without the declared arguments gets them from elsewhere.
        ("loss, optimizer", "scales,backward,clips,steps,clears", []),
        ("*everything", "scales,backward,clips,steps,clears", []),
    ],
)
def test_what_wrappers_do_is_said_by_the_configuration(arguments: str, events: str, found: list[str]) -> None:
    Path("train.py").write_text(FINISHES.format(arguments=arguments))
    assert codes(amp_check("train.py", *LINES)) == []
    assert codes(amp_check("train.py", *LINES, "--helpers", f"mylib.amp.finish:{events}")) == found


@pytest.mark.parametrize(("clip", "events"), [(True, "steps,updates"), (False, "clips,steps,updates")])
def test_an_optimizer_of_which_only_the_name_is_known_is_one_for_a_wrapper(events: str, *, clip: bool) -> None:
    # Modules have a zero_grad, too: the call does not identify the optimizer.
    last = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        " if clip else ""
    Path("train.py").write_text(f"""\
import torch
from mylib.amp import finish


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, y)
        scaler.scale(loss).backward()
        {last}finish(scaler, optimizer)
""")
    assert codes(amp_check("train.py", *LINES)) == []
    assert codes(amp_check("train.py", *LINES, "--helpers", f"mylib.amp.finish:{events}")) == ["AMP201"]
    assert codes(amp_check("train.py", *LINES, "--helpers", f"mylib.amp.finish:unscales,{events}")) == (
        ["AMP201"] if clip else []
    )


def test_what_wrappers_do_is_asked_anew_of_what_the_cache_knows() -> None:
    Path("train.py").write_text(FINISHES.format(arguments="loss, optimizer, scaler"))
    cached = {"AMP_CHECK_CACHE": "1"}
    assert codes(amp_check(".", *LINES, env=cached)) == []
    Path("amp-check.toml").write_text('[helpers]\n"mylib.amp.finish" = ["scales", "backward", "steps"]\n')
    assert "AMP206" in codes(amp_check(".", *LINES, env=cached))
    Path("amp-check.toml").unlink()
    assert codes(amp_check(".", *LINES, env=cached)) == []


def test_the_oldest_torch_can_be_said() -> None:
    Path("train.py").write_text("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n")
    Path("requirements.txt").write_text("torch>=2.0\n")
    assert "AMP901" not in codes(amp_check("train.py", *LINES))
    assert "AMP901" in codes(amp_check("train.py", *LINES, "--torch-version", "2.4"))
    Path("requirements.txt").write_text("torch>=2.4\n")
    assert "AMP901" in codes(amp_check("train.py", *LINES))
    assert "AMP901" not in codes(amp_check("train.py", *LINES, "--torch-version", "1.13"))


def test_where_code_runs_can_be_said() -> None:
    Path("train.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef main(model, optimizer, batches, device):\n"
        "    for x, y in batches:\n        optimizer.zero_grad()\n"
        "        with torch.autocast(device_type=device, dtype=torch.bfloat16):\n"
        "            loss = nn.functional.binary_cross_entropy(torch.sigmoid(model(x)), y)\n"
        "        loss.backward()\n        optimizer.step()\n"
    )

    def said(*argv: str) -> list[tuple[str, str]]:
        done = amp_check("train.py", *LINES, *argv)
        return [(row["code"], row["severity"]) for row in map(json.loads, done.stdout.splitlines())]

    # CUDA rejects the op, and the CPU computes it on rounded values.
    assert said() == said("--devices", "cuda,cpu") == said("--devices", "cuda") == [("AMP504", "error")]
    assert said("--devices", "cpu") == [("AMP504", "warning")]


def test_how_large_a_file_may_be_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    large = "import torch\nscaler = torch.amp.GradScaler()\nscaler.step(optimizer)\n" + "x = 1\n" * 1_000
    Path("train.py").write_text(large)
    size = len(large)

    def said(*argv: str, path: str = "train.py") -> list[tuple[str, str]]:
        rows = [json.loads(row) for row in amp_check(path, *LINES, *argv).stdout.splitlines()]
        return [(row["code"], row["message"]) for row in rows]

    whole = said()
    assert [code for code, _ in whole] == ["AMP206"]
    assert whole == said("--max-file-size", str(size)) == said("--max-file-size", "1MB") == said("--max-file-size", "0")
    for path in ("train.py", "."):
        ((code, message),) = said("--max-file-size", "6KB", path=path)
        assert code == "AMP903"
        assert f"it has {size:,} bytes of code, which is more than max-file-size allows: 6,000" in message
    monkeypatch.setenv("AMP_CHECK_MAX_FILE_SIZE", "6KB")
    assert [code for code, _ in said()] == ["AMP903"]
    Path("amp-check.toml").write_text("max-file-size = 1")
    assert [code for code, _ in said("--max-file-size", "1 MiB")] == ["AMP206"]


def test_stubs_are_read() -> None:
    Path("train.pyi").write_text("from torch.cuda.amp import GradScaler\n\nscaler: GradScaler\n")
    assert amp_check(".", "--show-files").stdout == "train.pyi\n"
    Path("plain.pyi").write_text("def step(scaler: object) -> None: ...\n")
    assert amp_check("plain.pyi").returncode == 0


def test_fixes_are_made_for_the_rules_that_may_be_fixed() -> None:
    mixed = BAD + "\n\n" + OLD
    # Without the requirement, the availability of the new names would be unknown.
    Path("requirements.txt").write_text("torch>=2.4\n")
    Path("train.py").write_text(mixed)
    before = codes(amp_check("train.py", *LINES))
    assert {"AMP201", "AMP901"} <= set(before)
    done = amp_check("train.py", "--fix", "--unfixable", "AMP201", *LINES)
    assert "AMP201" in codes(done)
    assert "AMP901" not in codes(done)
    Path("train.py").write_text(mixed)
    done = amp_check("train.py", "--fix", "--fixable", "AMP201", *LINES)
    assert "AMP201" not in codes(done)
    assert "AMP901" in codes(done)
    Path("train.py").write_text(mixed)
    done = amp_check("train.py", "--fix", "--fixable", "AMP1", "--extend-fixable", "AMP201", *LINES)
    assert "AMP201" not in codes(done)
    Path("train.py").write_text(BAD)
    assert "fixable" not in amp_check("train.py", "--unfixable", "ALL").stdout
    done = amp_check("train.py", "--unfixable", "AMP2O1")
    assert done.stderr == "amp-check: error: --unfixable: unknown rule 'AMP2O1': did you mean 'AMP201'?\n"


def test_what_is_left_after_fixes_is_of_no_interest_to_fix_only() -> None:
    Path("train.py").write_text(BAD + RULES["AMP202"].bad_example)
    assert amp_check("train.py", "--fix", "--fixable", "AMP201", "--exit-zero").returncode == 0
    Path("train.py").write_text(BAD + RULES["AMP202"].bad_example)
    done = amp_check("train.py", "--fix-only", "--fixable", "AMP201", *LINES)
    assert (done.returncode, done.stdout) == (0, "")
    assert "AMP201" not in codes(amp_check("train.py", *LINES))


def test_a_fix_fails_where_that_is_asked_for() -> None:
    Path("train.py").write_text(BAD)
    assert amp_check("train.py", "--fix", "--exit-non-zero-on-fix").returncode == 1
    assert amp_check("train.py", "--fix", "--exit-non-zero-on-fix").returncode == 0
    Path("train.py").write_text(BAD)
    assert amp_check("train.py", "--fix-only", "--exit-non-zero-on-fix").returncode == 1


def test_arguments_are_read_from_a_file() -> None:
    Path("train.py").write_text(BAD)
    Path("arguments").write_text("train.py\n--ignore\nAMP201\n\n")
    assert amp_check("@arguments").returncode == 0
    done = amp_check("@nothing")
    assert done.returncode == 2
    assert done.stderr == "amp-check: error: @nothing: the arguments cannot be read: No such file or directory\n"


def test_a_wrong_choice_is_answered_with_the_nearest() -> None:
    done = amp_check("--output-format", "jnit")
    assert done.returncode == 2
    assert done.stderr.endswith(": did you mean 'junit'?\n")


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")
def test_a_bar_is_shown_on_a_terminal_while_a_large_tree_is_read() -> None:
    for number in range(230):
        Path(f"train_{number}.py").write_text(GOOD)
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_amp_check", "check", ".", "-q", "--jobs", "1"],
        stdout=subprocess.PIPE,
        stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(slave)
        shown = _read(master, b"230/230")
        assert process.stdout is not None
        assert process.stdout.read() == b""
    os.close(master)
    assert process.returncode == 0
    assert b"checking" in shown
    assert b"/230" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_watch_checks_again_when_a_file_changes_and_ends_by_ctrl_c() -> None:
    Path("train.py").write_text(GOOD)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_amp_check", "check", ".", "-w", "--output-format", "concise"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        out = process.stdout.fileno()
        first = _read(out, b"Watching for changes.\n")
        assert b"No AMP mistakes found" in first
        Path("train.py").write_text(BAD)
        assert b"train.py:" in _read(out, b"Watching for changes.\n")
        Path("new.py").write_text(BAD)
        assert b"new.py:" in _read(out, b"Watching for changes.\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_watch_follows_the_configuration_and_outlives_what_is_wrong_for_a_while() -> None:
    Path("train.py").write_text(BAD)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest_amp_check", "check", "train.py", "--watch", "--output-format", "concise"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        out = process.stdout.fileno()

        def said() -> str:
            return _read(out, b"Watching for changes.\n").decode()

        assert "AMP201" in said()
        Path("train.py").rename("away.py")
        assert "`train.py` does not exist" in said()
        Path("away.py").rename("train.py")
        assert "AMP201" in said()
        Path("amp-check.toml").write_text("ignore = [")
        assert "amp-check.toml is not valid TOML" in said()
        Path("amp-check.toml").write_text('ignore = ["AMP201"]\n')
        assert "No AMP mistakes found" in said()
        Path("train.py").write_text(f"<<<<<<< HEAD\n{BAD}")
        assert "AMP903" in said()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_watching_what_is_not_there_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "nowhere.py", "-w"], capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("amp-check: error: `nowhere.py` does not exist: ")


def _read(stream: int, until: bytes) -> bytes:
    """Read a stream up to some bytes, or to its end."""
    found = b""
    end = time.monotonic() + PATIENCE
    while until not in found and time.monotonic() < end:
        if select.select([stream], [], [], 0.2)[0]:
            try:
                piece = os.read(stream, 65536)
            except OSError:
                # A terminal without writers raises this error.
                break
            if not piece:
                break
            found += piece
    return found


def test_completion_is_made_from_the_parser() -> None:
    pytest.importorskip("shtab")
    scripts: dict[str, str] = {}
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, "-m", "pytest_amp_check", "completion", shell], capture_output=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stderr
        scripts[shell] = done.stdout
        assert "extend-select" in done.stdout
        assert "json-lines" in done.stdout
    # Bash itself parses it.
    assert subprocess.run(["bash", "-n"], input=scripts["bash"], encoding="utf-8").returncode == 0


def test_completion_without_what_writes_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['shtab'] = None; from pytest_amp_check.frontends.cli import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", program, "completion", "bash"], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "amp-check: error: completion needs shtab: pip install 'pytest-amp-check[completion]'\n"


# The report.


def test_a_report_shows_what_the_terminal_shows() -> None:
    Path("train.py").write_text(BAD)
    Path("good.py").write_text(GOOD)
    done = amp_check(".", "--report", "out/report.html")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"The report is in {Path('out/report.html').resolve()}."
    page = unescape(re.sub("<[^>]+>", "", Path("out/report.html").read_text())).lower()
    assert "files read2" in page
    # Source frame, trace with its lines, fix, and command: each line of the terminal is in the page.
    where, *shown = done.stdout.split("\n\n")[0].splitlines()
    assert where.startswith("train.py:")
    for line in shown:
        words = re.sub(r"^\s+(\d+\. )?", "", line).rstrip(":")
        for part in words.partition(": ")[::2] if line.startswith("    ") else [words]:
            assert part.replace("`", "").lower() in page, line


def test_a_report_of_nothing_says_so() -> None:
    Path("good.py").write_text(GOOD)
    assert amp_check("good.py", "--report", "report.html").returncode == 0
    assert "No AMP mistakes were found in these files." in Path("report.html").read_text()


def test_a_report_of_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "-", "--report", "report.html"],
        input=BAD,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 1
    assert "&lt;stdin&gt;" in Path("report.html").read_text()


def test_a_report_that_cannot_be_written_is_said_before_anything_is_read() -> None:
    Path("train.py").write_text(BAD)
    Path("folder").mkdir()
    done = amp_check("train.py", "--report", "folder")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("folder: it is a folder: name a file in it\n")


def test_hostile_names_stay_text() -> None:
    name = "a<script>alert(1)<b>&.py"
    Path(name).write_text(BAD.replace("scaler", "scäler"))
    assert amp_check(name, "--report", "report.html").returncode == 1
    page = Path("report.html").read_text()
    assert page.count("<script>") == 1
    assert "a&lt;script&gt;alert(1)&lt;b&gt;&amp;.py" in page
