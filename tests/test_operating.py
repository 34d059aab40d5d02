"""The lines of OPERATING that tests can run: on rights, deletion, and the log."""

import os
import re
import subprocess
import sys

import pytest
from service import (
    ROOT,
    close_connection,
    drop_email_indexes,
    execute,
    on_mysql,
    on_sqlite,
    run,
    sign_in,
    user_with,
)

from database import db
from models import find_missing

OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()
PAGE = OPERATING.replace("\n", " ")
# In the sample of the log.
SESSION = re.search(r"session=(sess_\w+)", OPERATING)[1]
TARGET = re.search(r"target=(acct_\w+)", OPERATING)[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only for Linux")


def run_lines(folder, lines):
    """Run lines of the page in Bash; return what they print."""
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.check_output(
        ["bash", "-c", lines], cwd=folder, env=environment, text=True
    )


@on_mysql
def test_the_rights_of_the_mysql_user_are_enough(make_app, empty_database_url):
    """For init-db, which needs the most."""
    rights = re.search("GRANT (.*) ON profiles", OPERATING)[1]
    with user_with(empty_database_url, rights) as url:
        app = make_app(DATABASE_URL=url)
        assert run(app, "init-db") == {"object": "database", "added": []}
        execute(empty_database_url, "ALTER TABLE profile DROP COLUMN website")
        drop_email_indexes(empty_database_url)
        added = {"object": "database", "added": ["profile.website"]}
        assert run(app, "init-db") == added
        assert not find_missing(db)
        close_connection()


@on_sqlite
def test_what_was_deleted_is_overwritten(make_app, tmp_path):
    """While the service has the file open."""
    file = tmp_path / "x.db"
    app = make_app(DATABASE_URL=f"sqlite:///{file}", USER_PROFILE_FIELDS="phone")
    user = sign_in(app)
    profileid = user.create({"phone": "secret"}).json["profileid"]
    user.update(profileid, {"phone": "secret" * 2_000})  # splits the page
    run(app, "delete-account", user.accountid)

    def content():
        return file.read_bytes() + tmp_path.joinpath("x.db-wal").read_bytes()

    assert b"secret" in content()
    line = re.search('sqlite3 .*profiles.db "(VACUUM; .*)"', OPERATING)[1]
    for statement in line.split("; "):
        rows = execute(f"sqlite:///{file}", statement)
    assert rows == [(0, 0, 0)]
    assert b"secret" not in content()


def log_lines():
    """The request and the error of the sample; then the same request as a failure."""
    request, error = re.findall("\n(time=.*)", OPERATING)
    return request, error, request.replace("=200 ", "=503 ").replace(" ms=", " ms=100")


@pytest.mark.parametrize(
    ("sample", "file"),
    [(0, "gunicorn.conf.py"), (1, "app.py")],
    ids=["request", "error"],
)
def test_names_in_the_log(sample, file):
    names = re.findall("[a-z_]+=", log_lines()[sample])
    assert names == re.findall("([a-z_]+=){", (ROOT / file).read_text())


def created_session(**changes):
    """The line of a create-session by the session of the sample."""
    line = log_lines()[0].replace("end-sessions", "create-session")
    for name, value in ({"status": "201"} | changes).items():
        line = re.sub(f" {name}=[^ ]*", f" {name}={value}", line)
    return line


@pytest.mark.parametrize("question", re.findall("\n(grep [^|\n]*)", OPERATING))
def test_questions_to_the_log(tmp_path, question):
    """Each finds something."""
    (tmp_path / "log").write_text("\n".join([*log_lines(), created_session()]))
    assert run_lines(tmp_path, question.replace("SESSIONID", SESSION))


def test_the_lines_of_a_request(tmp_path):
    (tmp_path / "log").write_text("\n".join(log_lines()) + "\n")
    question = re.search("\n(grep 'request_id=.*)", OPERATING)[1]
    assert run_lines(tmp_path, question).splitlines() == [*log_lines()]


@pytest.mark.parametrize("narrowed", [False, True])
def test_sessions_that_a_leaked_token_created_are_ended(tmp_path, narrowed):
    """Each account's once, and none if there are none."""
    flask = tmp_path / "flask"
    flask.write_text('#!/bin/sh\necho "$@"\n')
    flask.chmod(0o755)
    lines = re.search(r"\n(grep -oP 'create-session .*\n.* end-sessions)", OPERATING)[1]
    lines = lines.replace("SESSIONID", SESSION)
    if narrowed:
        first, last = re.findall(r"put a time such as `(.*?)`.*?`(.*?)`, b", PAGE)[0]
        lines = lines.replace("create-session", f"{first}create-session")
        lines = lines.replace("' log", f"{last}' log")
    others = [
        log_lines()[0],
        created_session(session="sess_4"),
        created_session(status="403", target="acct_of_the_product"),
    ]
    if narrowed:
        others.append(created_session(client="198.51.100.1", target="acct_2"))
        others.append(created_session(target="acct_3").replace("T09", "T08"))
    log = tmp_path / "log"
    log.write_text("\n".join(others))
    assert run_lines(tmp_path, lines) == ""
    log.write_text("\n".join([*others, created_session(), created_session()]))
    assert run_lines(tmp_path, lines) == f"end-sessions {TARGET}\n"
