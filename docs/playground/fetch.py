"""Fetch what the playground runs: python docs/playground/fetch.py, before mkdocs build. Needs npm and pip.

python docs/playground/fetch.py --keep    packs the analyzer again, and keeps what was fetched before

The folder docs/playground/runtime then has Pyodide, the analyzer of this checkout, a LibCST in pure Python for fixes,
and the examples of the rules. The site serves all files itself, and the page needs no other address.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RUNTIME = FOLDER / "runtime"

#: A package of npm, and the integrity of its archive as the registry declares it.
PYODIDE = "pyodide@314.0.7"
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
#: The files of Pyodide that a browser loads, and the description with the licence.
PYODIDE_FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
    "package.json",
)
#: LibCST up to this version needs no compiled code. Its parser knows Python up to 3.8: newer files get no fixes here.
FIX_WHEELS = """\
libcst==0.3.23 --hash=sha256:2e1f77fbaaff93b889376c92f588b718edbdc21f956abbe27d10dfd1ff2d76c3
mypy_extensions==1.2.0 --hash=sha256:993e7a20aa5671eb41a7132cf555af30062da99729601601b9a8382b11cae768
typing_extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8
typing_inspect==0.9.0 --hash=sha256:9ee6fc59062311ef8547596ab6b955e1b8aa46242d854bfc78f4f6b0eff35f9f
"""
#: Folders of the package that analyze source and show findings.
ANALYZER = ("protocol", "static", "frontends")


def fetch_pyodide(folder: Path) -> None:
    """Unpack the files of Pyodide into a folder. Exit if the archive is not the expected one."""
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", temporary, PYODIDE], check=True, cwd=temporary)
        (archive,) = Path(temporary).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != INTEGRITY:
            sys.exit(f"{PYODIDE} has another content than expected: compare its integrity in the registry of npm")
        with tarfile.open(archive) as packed:
            for name in PYODIDE_FILES:
                file = packed.extractfile(f"package/{name}")
                assert file is not None
                (folder / name).write_bytes(file.read())


def fetch_fix_modules(target: Path) -> None:
    """Write the modules that compute fixes to a zip file."""
    with tempfile.TemporaryDirectory() as temporary:
        requirements = Path(temporary, "requirements.txt")
        requirements.write_text(FIX_WHEELS, encoding="utf-8")
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", temporary]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "-r", requirements], check=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
            for wheel in sorted(Path(temporary).glob("*.whl")):
                with zipfile.ZipFile(wheel) as opened:
                    for name in opened.namelist():
                        if "/tests/" not in name and not name.startswith("libcst/codemod/commands/"):
                            packed.writestr(name, opened.read(name))


def pack_analyzer(target: Path) -> None:
    """Write the analyzer of this checkout, and the module that the page calls, to a zip file."""
    package = ROOT / "pytest_amp_check"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in _find_modules(package):
            packed.write(path, path.relative_to(ROOT).as_posix())
        packed.write(FOLDER / "analyze.py", "analyze.py")


def _find_modules(package: Path) -> Iterable[Path]:
    yield package / "__init__.py"
    for folder in ANALYZER:
        yield from sorted((package / folder).rglob("*.py"))


def write_examples(target: Path) -> None:
    """Write the examples of the rules that read source."""
    sys.path.insert(0, str(ROOT))
    from pytest_amp_check.protocol.rule import RUNTIME as RUNS
    from pytest_amp_check.protocol.rules import RULES

    rules = [RULES[code] for code in sorted(RULES)]
    examples = [
        {
            "code": rule.code,
            "name": rule.name,
            "is_default": rule.on_by_default,
            "bad": rule.bad_example,
            "good": rule.good_example,
        }
        for rule in rules
        if rule.detected_by != RUNS
    ]
    target.write_text(json.dumps(examples), encoding="utf-8")


def fetch() -> None:
    """Fetch all files into a folder that has them all, or does not exist."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".runtime") as temporary:
        folder = Path(temporary) / RUNTIME.name
        folder.mkdir()
        fetch_pyodide(folder)
        fetch_fix_modules(folder / "fixes.zip")
        shutil.rmtree(RUNTIME, ignore_errors=True)
        folder.rename(RUNTIME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the fetched files, and pack the analyzer again")
    if not parser.parse_args().keep:
        fetch()
    pack_analyzer(RUNTIME / "analyzer.zip")
    write_examples(RUNTIME / "examples.json")
    size = sum(path.stat().st_size for path in RUNTIME.iterdir())
    sys.stdout.write(f"The playground is in {RUNTIME} ({size / 2**20:.0f} MiB).\n")


if __name__ == "__main__":
    main()
