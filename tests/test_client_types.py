"""docs/client.py in the oldest Python that it supports, and programs that use it."""

import os
import re
import subprocess
import typing
from inspect import isfunction
from runpy import run_path

import pytest
from service import ROOT

pytest.importorskip("mypy", reason="pip install -r tests/requirements.txt")
pytestmark = pytest.mark.long
CLIENT = ROOT / "docs/client.py"
SAMPLES = {"readme_sample.py": "README.md", "api_sample.py": "docs/API.md"}


def run(command, *files):
    options = {"capture_output": True, "text": True}
    options["env"] = os.environ | {"MYPYPATH": str(ROOT / "docs")}
    done = subprocess.run([*command.split(), *files], **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oldest_python():
    """It has neither syntax nor names of the library that Python 3.10 lacks."""
    assert "It needs Python 3.10 or newer" in CLIENT.read_text()
    run("ruff check --target-version py310", CLIENT)
    run("mypy --strict --follow-imports=silent --python-version 3.10", CLIENT)


@pytest.mark.parametrize("has_unpack", [True, False], ids=["new", "Python 3.10"])
def test_the_types_at_run_time(monkeypatch, has_unpack):
    """Frameworks that inject arguments read them."""
    pytest.importorskip("requests")
    if not has_unpack:
        monkeypatch.delattr(typing, "Unpack")
    module = run_path(str(CLIENT))
    calls = [module[name] for name in ("accounts", "sign_in", "read_page", "walk")]
    for owner in (module["Service"], module["User"]):
        calls += [call for call in vars(owner).values() if isfunction(call)]
    assert all("return" in typing.get_type_hints(call) for call in calls)


def test_programs(tmp_path):
    """The samples of the pages are right, and so is client_types.py.

    Each of its lines that must be refused has a "type: ignore", which mypy refuses on
    a line that is right.
    """
    files = [ROOT / "tests/client_types.py"]
    for name, page in SAMPLES.items():
        (sample,) = re.findall("(?s)```python\n(.*?)```", (ROOT / page).read_text())
        (tmp_path / name).write_text(sample)
        files.append(tmp_path / name)
    run("mypy --strict --python-version 3.10", *files)
