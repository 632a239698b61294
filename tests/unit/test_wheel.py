"""The wheel has all that the source has: modules, the units, what says that they are typed, and the documentation; and
it works where it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"
PACKAGES = {"prefetchd": ROOT / "prefetchd"} | {name: CLIENT / name for name in ("prefetchd_client", "prefetchd_demo")}
DOCS = ROOT / "docs"

pytest.importorskip("hatchling")

import hatch_build  # noqa: E402
from prefetchd.cli.docs import PAGES_BESIDE  # noqa: E402


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (found,) = place.iterdir()
    return found


def pages() -> dict[str, Path]:
    """What each page is called, and where the source has it."""
    return {path.stem: path for path in DOCS.glob("*.md")} | {each: ROOT / each / "README.md" for each in PAGES_BESIDE}


def files_of(root: Path) -> list[str]:
    """The files below `root`, without what is compiled."""
    found = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path.relative_to(root).as_posix() for path in found]


def test_one_wheel_has_all_packages_the_units_and_the_docs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {f"{name}/{file}" for name, root in PACKAGES.items() for file in files_of(root)}
    expected |= {f"prefetchd/docs/{file}" for file in files_of(DOCS) if not file.startswith(("decisions/", "images/"))}
    expected |= {f"prefetchd/docs/{each}/{file}" for each in PAGES_BESIDE for file in files_of(ROOT / each)}
    assert expected == {name for name in names if ".dist-info/" not in name}
    assert {"prefetchd/units/prefetchd.service", "prefetchd/units/prefetchd.socket"} <= names
    assert {"prefetchd/py.typed", "prefetchd_client/py.typed"} <= names
    assert {"prefetchd/docs/configuration.md", "prefetchd/docs/systemd/README.md"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any("/licenses/" in name and name.endswith("uplot.LICENSE.txt") for name in names)


def test_an_editable_installation_is_of_the_checkout_alone(tmp_path):
    """A directory of ours in its site-packages would be half a package."""
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=100)
    (found,) = tmp_path.iterdir()
    with zipfile.ZipFile(found) as archive:
        assert [name for name in archive.namelist() if ".dist-info/" not in name] == ["_prefetchd.pth"]
        assert archive.read("_prefetchd.pth").decode().splitlines() == [str(ROOT), str(CLIENT)]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """installed(*command) runs a program of a fresh environment that has the wheel, without what it depends on: that is
    found in the environment of the tests."""
    place = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=100)
    (packages,) = place.glob("lib/python*/site-packages")
    # Behind its own, unlike what is in PYTHONPATH.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *arguments):
        return subprocess.run(
            [place / "bin" / program, *arguments],
            env=environment,
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    run.place = place
    return run


def test_an_installation_shows_its_pages_and_says_where_they_are(installed):
    done = installed("prefetchd", "docs")
    assert (done.returncode, done.stderr) == (0, "")
    *listed, where = done.stdout.splitlines()
    assert [line.split()[0] for line in listed] == sorted(pages())
    assert f"They are in {installed.place}/lib/" in where, "not those of the checkout"
    for name, source in pages().items():
        assert installed("prefetchd", "docs", name).stdout == source.read_text("utf-8")
    path = installed("prefetchd", "docs", "--path", "status").stdout.removesuffix("\n")
    assert path.startswith(f"{installed.place}/lib/")
    assert Path(path).read_text("utf-8") == (DOCS / "status.md").read_text("utf-8")
    assert installed("prefetchd", "docs", "docs/status.md").returncode == 0
    wrong = installed("prefetchd", "docs", "statu")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "did you mean 'status'?" in wrong.stderr


def test_the_description_of_an_installation_has_no_link_that_leads_nowhere(installed):
    code = "import importlib.metadata as found; print(found.metadata('prefetchd').get_payload())"
    text = installed("python", "-c", code).stdout
    assert "No daemon has to be started" in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []
    named = set(re.findall(r"`prefetchd docs ([\w-]+)`", text))
    linked = {Path(link).stem for link in re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text("utf-8"))}
    assert linked | set(PAGES_BESIDE) == named
    assert named <= pages().keys()


def test_where_the_repository_has_an_address_links_lead_there_and_else_there_are_no_urls():
    (repository,) = re.findall(r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert repository == "" or repository.startswith("https://")
    assert hatch_build.urls("") == {}
    readme = "[a page](docs/status.md#exit-codes), [systemd/](systemd/README.md), [elsewhere](https://example.org/x)"
    assert hatch_build.described(readme, "https://example.org/us") == (
        "[a page](https://example.org/us/blob/main/docs/status.md#exit-codes), "
        "[systemd/](https://example.org/us/blob/main/systemd/README.md), [elsewhere](https://example.org/x)"
    )
    assert hatch_build.described(readme, "") == (
        "a page (`prefetchd docs status`), `prefetchd docs systemd`, [elsewhere](https://example.org/x)"
    )
    picture = "What it shows:\n\n![a page](docs/images/x.png)\n\nAnd so on."
    assert hatch_build.described(picture, "") == "What it shows:\n\nAnd so on."
    assert "](https://example.org/us/raw/main/docs/images/x.png)" in hatch_build.described(
        picture, "https://example.org/us"
    )
    assert hatch_build.urls("https://example.org/us")["Changelog"] == "https://example.org/us/blob/main/CHANGELOG.md"
