"""Rehearsal of a release without a network: wheel, sdist, site and extension of a tag, each installed and tried.

python benchmarks/rehearse.py [v0.1.0] [--into FOLDER]

Without a tag, the current commit is rehearsed under the version that it declares. Uncommitted changes do not count.
Needs the extras dev and docs. The site has a playground if ``docs/playground/fetch.py`` has fetched one before, and the
extension of VS Code is built if ``npm ci`` has been run in ``editors/vscode``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Nothing may be fetched: pip has no index, and programs that ask a proxy meet a closed port.
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NPM_CONFIG_OFFLINE": "true",
}


class Failed(Exception):
    """Error of a rehearsal; the message is one sentence."""


def run(command: Sequence[str | Path], cwd: Path, code: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """Run a command offline and return its output. Raise :class:`Failed` for another exit code."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = {**variables, **OFFLINE, **(environment or {})}
    words = list(map(str, command))
    done = subprocess.run(words, check=False, cwd=cwd, env=given, capture_output=True, encoding="utf-8")
    if done.returncode != code:
        raise Failed(f"`{' '.join(words)}` ended with {done.returncode} instead of {code}:\n{done.stdout}{done.stderr}")
    return done.stdout


def export(revision: str, target: Path) -> None:
    """Write the files of a revision to a folder."""
    archive = target.with_suffix(".tar")
    run(["git", "archive", "--output", archive, revision], ROOT)
    with tarfile.open(archive) as packed:
        _extract(packed, target)
    archive.unlink()


def _extract(packed: tarfile.TarFile, target: Path) -> None:
    # Python 3.14 has this filter as the default, and the first releases of 3.10 and 3.11 do not know it.
    if hasattr(tarfile, "data_filter"):
        packed.extractall(target, filter="data")
    else:
        packed.extractall(target)  # noqa: S202 - the archive was made here


def build(tree: Path, into: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist of a tree, and return both paths."""
    run([sys.executable, "-m", "hatchling", "build", "--directory", into], tree)
    (wheel,), (sdist,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return wheel, sdist


def install(wheel: Path, environment: Path) -> Path:
    """Install a wheel in a new environment that also sees the packages of this one. Return its folder of programs."""
    run([sys.executable, "-m", "venv", "--without-pip", environment], environment.parent)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel], environment)
    site = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], environment).strip()
    # What the package needs. An editable install of this checkout does not count: its finder is not in these folders.
    seen = [path for path in sys.path if path.endswith("site-packages")]
    Path(site, "packages_of_the_rehearsal.pth").write_text("\n".join(seen), encoding="utf-8")
    return programs


def try_package(programs: Path, version: str, tree: Path, folder: Path) -> None:
    """Run the installed command and the pytest plugin, from a folder without the source."""
    found = run([programs / "python", "-c", "import pytest_amp_check as p; print(p.__file__)"], folder).strip()
    if not Path(found).is_relative_to(programs.parent):
        raise Failed(f"the environment imports {found}, not the installed package")
    said = run([programs / "amp-check", "version"], folder).strip()
    if said != f"amp-check {version}":
        raise Failed(f"the package says {said!r}, and the release is {version}")
    shutil.copy(tree / "fixtures" / "headline.py", folder)
    said = run([programs / "amp-check", "check", "--no-cache", "--isolated", "headline.py"], folder, code=1)
    if "AMP201" not in said:
        raise Failed("the installed command does not find the mistake of fixtures/headline.py")
    checked = ["-m", "pytest", "--amp-check", "-p", "no:cacheprovider", "-q", "headline.py"]
    if "AMP201" not in run([programs / "python", *checked], folder, code=1):
        raise Failed("the installed plugin does not find the mistake of fixtures/headline.py")


def compare_wheels(one: Path, other: Path) -> None:
    """Raise :class:`Failed` if two wheels have different files."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        digests = [
            {name: hashlib.sha256(packed.read(name)).hexdigest() for name in packed.namelist()}
            for packed in (first, second)
        ]
    different = sorted(name for name in {*digests[0], *digests[1]} if digests[0].get(name) != digests[1].get(name))
    if different:
        raise Failed(f"the wheel of the sdist differs from the wheel of the tree in {', '.join(different)}")


def build_site(tree: Path, into: Path) -> bool:
    """Build the site of a tree. Return True if it has a playground."""
    fetched = ROOT / "docs" / "playground" / "runtime"
    if fetched.is_dir():
        shutil.copytree(fetched, tree / "docs" / "playground" / "runtime")
        run([sys.executable, tree / "docs" / "playground" / "fetch.py", "--keep"], tree)
    # The page of the API documents the package of the tree.
    run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", into],
        tree,
        0,
        {"PYTHONPATH": str(tree)},
    )
    pages = [
        page
        for page in ("index.html", "rules/AMP201/index.html", "playground/index.html")
        if not (into / page).is_file()
    ]
    if pages:
        raise Failed(f"the site lacks {', '.join(pages)}")
    return (into / "playground" / "runtime" / "analyzer.zip").is_file()


def build_extension(tree: Path, into: Path, python: Path) -> Path | None:
    """Build the extension and test it with an installed server. Return its path, or None without its tools."""
    tools = ROOT / "editors" / "vscode" / "node_modules"
    npm = shutil.which("npm")
    if npm is None or not tools.is_dir():
        return None
    folder = tree / "editors" / "vscode"
    shutil.copytree(tools, folder / "node_modules", symlinks=True)
    command = json.dumps([str(python), "-m", "pytest_amp_check"])
    run([npm, "run", "--silent", "types"], folder)
    run([npm, "run", "--silent", "test"], folder, 0, {"AMP_CHECK": command})
    package = into / "amp-check.vsix"
    run([npm, "run", "--silent", "package", "--", package], folder)
    with zipfile.ZipFile(package) as packed:
        if "extension/dist/extension.js" not in packed.namelist():
            raise Failed("the extension lacks its code")
    return package


def rehearse(revision: str, tag: str, into: Path) -> None:
    """Build and try all artifacts of a revision. ``tag`` is the expected tag, or "" for the declared version."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        tree = work / "tree"
        export(revision, tree)
        wheel, sdist = build(tree, into)
        version = wheel.name.split("-")[1]
        if tag and tag != f"v{version}":
            raise Failed(f"the tag {tag} is not v{version}, the version of the package")
        say(f"built {wheel.name} ({wheel.stat().st_size / 2**10:.0f} KiB), {sdist.name}")
        (work / "empty").mkdir()
        programs = install(wheel, work / "environment")
        try_package(programs, version, tree, work / "empty")
        say("the wheel installs, and its command and its plugin find the mistakes of fixtures/headline.py")
        with tarfile.open(sdist) as packed:
            _extract(packed, work / "unpacked")
        (unpacked,) = (work / "unpacked").iterdir()
        compare_wheels(wheel, build(unpacked, work / "again")[0])
        say("the sdist builds the same wheel")
        run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/protocol/test_finding.py"], unpacked
        )
        say("the sdist runs its tests")
        has_playground = build_site(tree, into / "site")
        say(f"built the site {'with' if has_playground else 'without'} a playground")
        package = build_extension(tree, into, programs / "python")
        if package is None:
            say("no extension: `npm ci` in editors/vscode brings what builds it")
        else:
            say(f"built {package.name} ({package.stat().st_size / 2**10:.0f} KiB), which talks to the installed server")


def say(sentence: str) -> None:
    print(sentence, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tag", nargs="?", default="", help="the tag of the release; the current commit if none is given"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="folder of the artifacts (default: dist)")
    given = parser.parse_args()
    into = given.into.resolve()
    if into.exists() and any(into.iterdir()):
        print(f"{into} is not empty: move its files, or name another folder by --into", file=sys.stderr)
        return 2
    into.mkdir(parents=True, exist_ok=True)
    try:
        rehearse(given.tag or "HEAD", given.tag, into)
    except Failed as error:
        print(f"The rehearsal failed: {error}", file=sys.stderr)
        return 1
    say(f"The release is in {into}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
