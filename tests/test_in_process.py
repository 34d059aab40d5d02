"""The operations called in-process: from threads, other applications, and without one."""

import subprocess
import sys
import threading

import pytest
from flask import Flask
from flask.logging import default_handler
from serving import ROOT, Person, named

import operations
from operations import create_profile, list_profiles


def test_from_a_thread_without_a_context(make_app):
    app = make_app()
    user, made = Person(app), []

    def call():
        made.append(create_profile(user.account, user.accountid, named("name")))

    assert user.account
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert made[0]["appid"] == user.appid


def test_from_a_view_of_another_flask_app(make_app, capsys):
    administrator = Person(make_app(), administrator=True)
    made = administrator.create(named("name")).json
    other = Flask("other")
    other.config["SETTINGS"] = "its own"
    other.logger.addHandler(default_handler)  # as without pytest

    @other.get("/")
    def view():
        other.logger.error("its own line")
        return list_profiles(administrator.account)

    assert administrator.account
    assert other.test_client().get("/").json == [made]
    other.logger.removeHandler(default_handler)
    errors = capsys.readouterr().err
    assert "its own line" in errors and "Logging error" not in errors


def test_the_settings_of_the_active_app_count_or_else_those_of_the_last(make_app):
    first, last = make_app(PAGE_SIZE=1), make_app(PAGE_SIZE=2)
    assert operations.settings().page_size == 2
    with first.app_context():
        assert operations.settings().page_size == 1
        with last.app_context():
            assert operations.settings().page_size == 2


def test_before_any_application_the_error_says_so(monkeypatch):
    monkeypatch.setattr(operations, "settings_source", None)
    with pytest.raises(RuntimeError, match="call create_app"):
        list_profiles(None)


def test_the_sample_of_the_readme_runs_as_it_stands(tmp_path):
    section = (ROOT / "README.md").read_text().split("## In-process")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=ROOT,
        env={"DATABASE_URL": f"sqlite:///{tmp_path}/x.db", "APPID": "shop"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "'phone': '1'" in done.stdout
