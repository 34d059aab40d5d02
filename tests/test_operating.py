"""The lines and tables of OPERATING that tests can run: rights, deletion, the log."""

import re
import subprocess
import sys

import pytest
from service import (
    ROOT,
    close_connection,
    execute,
    on_mysql,
    on_sqlite,
    run,
    sign_in,
    user_with,
)

from app import create_app
from config import parse_database_url

OPERATING = (ROOT / "docs" / "OPERATING.md").read_text()
LOG = re.search(r"\n```\n(time=.*?)```", OPERATING, re.DOTALL)[1]
REQUEST, ERROR = LOG.splitlines()
ERRORS = re.search(r"(?s)\n\| error \|(.*?)\n\n", OPERATING)[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only for Linux")


@on_mysql
def test_the_rights_of_the_mysql_user_are_enough(make_app, empty_database_url):
    """For init-db, which needs the most."""
    rights = re.search("GRANT (.*) ON profiles", OPERATING)[1]
    index = "INDEX profile_appid_contactEmail"
    with user_with(empty_database_url, rights) as url:
        app = make_app(DATABASE_URL=url)
        assert run(app, "init-db") == {"object": "database", "added": []}
        changes = f"ALTER TABLE profile DROP COLUMN website, DROP {index}"
        execute(empty_database_url, changes)
        added = {"object": "database", "added": ["profile.website"]}
        assert run(app, "init-db") == added
        execute(empty_database_url, f"ALTER TABLE profile DROP {index}")
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
    line = re.search('sqlite3 .* FILE "(VACUUM; .*)"', OPERATING)[1]
    for statement in line.split("; "):
        rows = execute(f"sqlite:///{file}", statement)
    assert rows == [(0, 0, 0)]
    assert b"secret" not in content()


@pytest.mark.parametrize(
    "line, file",
    [(REQUEST, "gunicorn.conf.py"), (ERROR, "app.py")],
    ids=["request", "error"],
)
def test_names_in_the_log(line, file):
    names = re.findall("[a-z_]+=", line)
    assert names == re.findall("([a-z_]+=){", (ROOT / file).read_text())


@pytest.mark.parametrize("question", re.findall("\n(grep [^|\n]*log) ", OPERATING))
def test_questions_to_the_log(tmp_path, question):
    """Each finds something."""
    slow = REQUEST.replace("=200 ", "=503 ").replace(" ms=", " ms=100")
    deletion = REQUEST.replace("end-sessions", "delete-account")
    (tmp_path / "log").write_text("\n".join([REQUEST, ERROR, slow, deletion]))
    assert subprocess.check_output(["bash", "-c", question], cwd=tmp_path)


def has_row(url, command="init-db"):
    """Return whether the table names the error of a command, or its beginning."""
    done = create_app({"DATABASE_URL": url}).test_cli_runner().invoke(args=[command])
    close_connection()
    error = re.search(r"database-unavailable: .*(SQLITE_\w+|\d{4})", done.output)[1]
    return any(error.startswith(name) for name in re.findall(r"\w{4,}", ERRORS))


@pytest.mark.parametrize("url", ["sqlite:////missing/x.db", f"sqlite:///{__file__}"])
def test_errors_of_sqlite(url):
    assert has_row(url)


@on_mysql
def test_errors_of_mysql(empty_database_url):
    """A missing right, a wrong password or user, another database, and a wrong port."""
    with user_with(empty_database_url, "SELECT") as url:
        assert has_row(url)
        assert has_row(url.replace(":x@", ":wrong@"))
        assert has_row(url.replace("//profiles_test_", "//missing_"))
        assert has_row(re.sub(r"/\w+(?=\?|$)", "/missing", url))
        assert has_row(re.sub("@[^/]*/", "@127.0.0.1:1/", url))


@on_mysql
def test_errors_of_a_statement_that_is_ended(make_app, empty_database_url):
    make_app(DATABASE_URL=empty_database_url)
    kill = "BEFORE INSERT ON account FOR EACH ROW KILL QUERY CONNECTION_ID()"
    execute(empty_database_url, f"CREATE TRIGGER x {kill}")
    assert has_row(empty_database_url, "create-account")


@pytest.mark.parametrize("number", ["1104", "1118", "1130", "1665"])
def test_errors_of_a_server_with_other_settings(number):
    assert number in ERRORS


@on_mysql
@pytest.mark.parametrize(
    "change", ["ACCOUNT LOCK", "PASSWORD EXPIRE", "WITH MAX_QUERIES_PER_HOUR 1"]
)
def test_errors_of_a_user_of_mysql(empty_database_url, change):
    with user_with(empty_database_url, "ALL") as url:
        name = parse_database_url(url).name
        users = f"{name}@'%', {name}@localhost"
        execute(empty_database_url, f"ALTER USER {users} {change}")
        assert has_row(url)
