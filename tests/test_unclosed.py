"""The guard of conftest.py: a run fails that leaves a database connection open."""

import os
import subprocess
import sys

import pytest
from serving import ROOT

LEAKS = """
import sqlite3
import databases

kept = []

def connect(url, tmp_path):
    if databases.is_sqlite(url):
        return sqlite3.connect(tmp_path / "x.db")
    return databases.mysql_server()

def test_kept(database_url, tmp_path):
    kept.append(connect(database_url, tmp_path))

def test_forgotten(database_url, tmp_path):
    connect(database_url, tmp_path)

def test_closed(database_url, tmp_path):
    kept.pop().close()
    connect(database_url, tmp_path).close()
"""


@pytest.mark.long
def test_a_connection_left_open_is_an_error(database_url, tmp_path):
    """Whether something still refers to it or not."""
    engine = database_url.partition(":")[0]
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-rE", "-k", engine]
    done = subprocess.run(
        [*command, "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    lines = [line.split("::")[1] for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    names = [line.partition("[")[0] for line in lines]
    assert names == ["test_kept", "test_forgotten"], done.stdout
    assert "opened here and never closed" in done.stdout
