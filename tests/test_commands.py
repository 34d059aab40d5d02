"""The Flask commands, by what they print and what they store."""

import itertools
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import time
from contextlib import redirect_stderr
from functools import partial
from io import StringIO

import pytest
from peewee import OperationalError
from service import (
    SERVER,
    SESSIONS,
    SignedIn,
    assert_error,
    cursor_of,
    execute,
    fill,
    mysql_url,
    named,
    on_mysql,
    on_sqlite,
    own_database_url,
    run_python,
    sign_in,
    stored,
)

from accounts import create_account, delete_account, find_accounts, find_own_account
from app import create_app
from callers import OPERATOR
from database import MySQL, db
from models import Profile, Session, timestamp

# Runs a command; prints the most memory that it used, in KB on Linux.
DEFECT = "internal-error: see the traceback above"
CREATE_ACCOUNT = "/api/administrator/create-account"
REFUSAL = "CREATE TRIGGER x BEFORE INSERT ON session"
ABORT = "BEGIN SELECT RAISE(ABORT, 'no'); END"  # the action of a trigger in SQLite


database_url = own_database_url
target = own_database_url  # the empty database that a copy goes to


@pytest.fixture
def invoke(app):
    """Runs a command; returns its status and its output."""
    return lambda *words: app.test_cli_runner().invoke(args=words)


@pytest.fixture
def fail(invoke):
    """Runs a command that fails; returns the only line that it prints."""

    def run(*words):
        done = invoke(*words)
        assert (done.exit_code, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "",
        "init-db --help",
        "purge-sessions --days x",
        "missing",
        "routes",
    ],
)
def test_only_a_command_that_runs_makes_a_database(tmp_path, words):
    """Neither help does, nor what needs none, nor what is refused."""
    url = f"sqlite:///{tmp_path}/profiles.db"
    done = run_python("-m", "flask", *words.split(), DATABASE_URL=url)
    assert re.search("Usage: |Flask|Endpoint ", done.stdout + done.stderr)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words",
    [
        "create-account",
        "create-administrator",
        "demo",
        "import-users /dev/null",
        "init-db",
    ],
)
def test_a_command_reports_a_file_that_it_makes(tmp_path, words):
    """Otherwise a token of a wrong database would look like any other."""
    file = tmp_path / "profiles.db"
    url = f"sqlite:///{file}"
    for created in (f"Created a new database, {file}\n", ""):
        done = run_python("-m", "flask", *words.split(), DATABASE_URL=url)
        assert re.sub("Error: columns: .*\n", "", done.stderr) == created


@pytest.mark.parametrize(
    "words",
    [
        "copy-database sqlite:///{}/copy.db",
        "create-session x",
        "delete-account x",
        "end-session x",
        "end-sessions --all",
        "find-accounts x",
        "list-administrators",
        "purge-sessions",
        "set-administrator x",
        "show-account x",
    ],
)
def test_a_command_that_needs_a_database_makes_none(tmp_path, monkeypatch, words):
    """A wrong one would look empty, and a backup would succeed without a row."""
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    app = create_app({"DATABASE_URL": f"sqlite:///{tmp_path}/misspelt.db"})
    done = app.test_cli_runner().invoke(args=words.format(tmp_path).split())
    assert (done.exit_code, done.stdout) == (1, "")
    reason = "no such file; check DATABASE_URL, or run flask init-db"
    assert done.stderr == f"Error: {tmp_path}/misspelt.db: {reason}\n"
    assert not [*tmp_path.iterdir()]


NO_ACCOUNT = "invalid-accountid: the application has no such account"
NO_SESSION = "invalid-sessionid: the application has no such session"
BAD_APPID = "invalid-appid: it must match [A-Za-z0-9._-]{1,64}"
BAD_KEY = (
    "invalid-idempotency-key: it must have 1 to 255 printable ASCII characters, no "
    "space at either end, and an accountid that no other key has"
)
NO_DURATION = "Invalid value for '--duration': {} is not in the range 1<=x<=2147483647."
NO_DAYS = "Invalid value for '--days': {} is not in the range 0<=x<=36500."


@pytest.mark.parametrize(
    "words, line",
    [
        ("set-administrator ACCT_0123456789abcdef", NO_ACCOUNT),
        ("end-sessions x", NO_ACCOUNT),
        ("create-account --appid a/b", BAD_APPID),
        ("find-accounts x --appid a/b", BAD_APPID),
        ("list-administrators --appid a/b", BAD_APPID),
        ("create-account --key é", BAD_KEY),
        ("show-account --key=", BAD_KEY),
        ("show-account --key ' u1'", BAD_KEY),
        ("set-administrator é", NO_ACCOUNT),  # MySQL would refuse to compare it
    ],
)
def test_an_identifier_that_is_refused(fail, words, line):
    assert fail(*shlex.split(words)) == f"Error: {line}"


@on_sqlite
@pytest.mark.parametrize(
    "words, line",
    [
        ("create-session x --duration 0", NO_DURATION.format(0)),
        ("create-session x --duration 2147483648", NO_DURATION.format(2**31)),
        ("purge-sessions --days -1", NO_DAYS.format(-1)),
        ("purge-sessions --days 36501", NO_DAYS.format(36501)),
        ("end-sessions", "give either ACCOUNTID or --all"),
        ("end-sessions x --all", "give either ACCOUNTID or --all"),
        ("show-account", "give either ACCOUNTID or --key"),
        ("show-account x --key x", "give either ACCOUNTID or --key"),
        ("create-account --key x --administrator", "--key creates an ordinary account"),
    ],
)
def test_arguments_that_do_not_fit(invoke, database_url, words, line):
    before = stored(database_url)
    done = invoke(*words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"Error: {line}"
    assert stored(database_url) == before


def test_create_account(flask):
    account = flask("create-account", "--appid", "Shop", "--administrator")
    assert (account["appid"], account["administrator"]) == ("Shop", True)


def test_create_account_with_a_key(app, flask, administrator):
    """It is the account that the product gets for its user, whichever comes first."""
    for user_id in ("42", "Ada King"):
        created = flask("create-account", "--key", user_id)
        headers = {"Idempotency-Key": user_id}
        response = administrator.post(CREATE_ACCOUNT, headers=headers)
        assert response.json == created | {"profile": None}
        assert flask("create-account", "--key", user_id) == created
    shop = flask("create-account", "--key", "42", "--appid", "Shop")
    assert shop["accountid"] == "acct_31278aff59bb962e"
    assert shop["appid"] == "Shop"


def test_show_account(app, flask, database_url):
    """All of it, newest first, more than is read at once; nothing of other accounts."""
    shop = flask("create-account", "--key", "42", "--appid", "Shop")
    whole = shop | {"profiles": [], "sessions": []}
    words = ("show-account", shop["accountid"], "--appid", "Shop")
    assert flask(*words) == whole
    for client in (sign_in(app, appid="Shop"), sign_in(app)):
        client.create(named("Eve"))
    whole["profiles"] = fill(Profile, "Shop", 101, accountid=shop["accountid"])
    whole["sessions"] = fill(Session, "Shop", 101, accountid=shop["accountid"])
    assert flask(*words) == whole
    assert flask("show-account", "--key", "42", "--appid", "Shop") == whole


@pytest.mark.parametrize(
    "words",
    [
        "show-account ACCOUNT",
        "create-session ACCOUNT",
        "set-administrator ACCOUNT",
        "end-session SESSION",
        "end-sessions ACCOUNT",
        "delete-account ACCOUNT",
    ],
)
def test_an_identifier_of_another_application(app, fail, user, database_url, words):
    """Without --appid, an application is the service's own, to any command."""
    shop = sign_in(app, appid="Shop")
    before = stored(database_url)
    for client, options in ((shop, []), (user, ["--appid", "Shop"])):
        own = words.replace("ACCOUNT", client.accountid)
        own = own.replace("SESSION", client.session["sessionid"])
        line = fail(*own.split(), *options)
        assert line == f"Error: {NO_SESSION if 'SESSION' in words else NO_ACCOUNT}"
    assert stored(database_url) == before


def test_a_token_is_shown_first_and_not_stored(user, database_url):
    assert [*user.session][0] == "token"
    assert re.fullmatch("[0-9a-f]{64}", user.token)
    assert user.token not in str(stored(database_url))


def test_create_administrator(app, flask):
    """A repeat creates another administrator."""
    session = flask("create-administrator", "--appid", "Shop")
    assert session["duration"] == 31_536_000
    shop = SignedIn(app)
    shop.headers = {"Authorization": f"Bearer {session.pop('token')}"}
    assert shop.get(SESSIONS, headers={"X-Appid": "Shop"}).json == [session]
    again = flask("create-administrator", "--appid", "Shop", "--duration", "60")
    assert again["accountid"] != session["accountid"]
    assert again["duration"] == 60


def test_an_administrator_and_its_session_are_stored_both_or_neither(
    app, fail, database_url
):
    rename = "ALTER TABLE session RENAME COLUMN {} TO {}"
    execute(database_url, rename.format("duration", "away"))
    assert fail("create-administrator").startswith("Error: database-unavailable: ")
    execute(database_url, rename.format("away", "duration"))
    assert not any(stored(database_url).values())


def test_end_sessions_of_all_ordinary_accounts(app, flask, user, administrator):
    """Of one application, in batches; the expired ones are marked, too."""
    shop = sign_in(app, appid="Shop")
    expired = fill(Session, user.appid, 1_001)[0]["sessionid"]
    for count in (1, 0):
        assert flask("end-sessions", "--all") == {"object": "end", "count": count}
    assert_error(user.get("/api/user/account"), 401, "sign-in-required", "ended")
    assert Session.get(Session.sessionid == expired).endedAt
    path = f"/api/user/account?accountid={shop.accountid}"
    assert shop.get(path).status_code == 200
    assert administrator.get(SESSIONS).status_code == 200


@on_sqlite
def test_a_command_prints_utf_8_whatever_the_locale_is(user, database_url):
    profile = user.create({**named("Zoë"), "contact-email": "zoe@example.com"}).json
    settings = {"DATABASE_URL": database_url, "APPID": user.appid}
    settings |= {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = run_python("-m", "flask", "show-account", user.accountid, **settings)
    assert "Zoë" in done.stdout
    assert json.loads(done.stdout)["profiles"] == [profile]


def test_set_administrator_ends_the_sessions(flask, user, administrator):
    on = flask("set-administrator", user.accountid)
    off = flask("set-administrator", administrator.accountid, "--off")
    assert (on["administrator"], off["administrator"]) == (True, False)
    assert_error(user.get(SESSIONS), 401, "sign-in-required", "ended")
    assert_error(administrator.get(SESSIONS), 401, "sign-in-required", "ended")


def test_list_administrators(flask):
    """Of one application, the oldest first."""
    create = partial(flask, "create-account")
    create()
    first = create("--administrator")
    time.sleep(0.002)  # so that the second is of another millisecond
    second = create("--administrator")
    shop = create("--administrator", "--appid", "Shop")
    listed = flask("list-administrators")
    assert listed == {"object": "accounts", "data": [first, second]}
    listed = flask("list-administrators", "--appid", "Shop")
    assert listed == {"object": "accounts", "data": [shop]}


@on_sqlite
def test_find_accounts_shows_the_profiles_that_have_the_address(app, flask, user):
    """Whole, newest first, and no others, be they of the account or the application."""
    made = [user.create(named(name)).json for name in ("Ada", "Eve", "ADA")]
    shop = sign_in(app, appid="Shop")
    shop.create(named("Ada"))
    account = find_own_account(user.caller, user.accountid)
    del account["profile"]
    (found,) = flask("find-accounts", "ada@example.com")["data"]
    assert found == account | {"profiles": [made[2], made[0]]}
    (other,) = flask("find-accounts", "ada@example.com", "--appid", "Shop")["data"]
    assert other["accountid"] == shop.accountid
    assert flask("find-accounts", "")["data"] == []


def test_find_accounts_leaves_out_one_that_is_deleted_meanwhile(app, user, monkeypatch):
    """Profiles are read first, and then their accounts."""
    users = [user, sign_in(app)]
    for each in users:
        each.create(named("Ada"))
    remaining = users.pop()

    def delete(event):
        if "contactEmail" in event.sql and users:
            delete_account(OPERATOR, users.pop().accountid)

    monkeypatch.setattr(db.obj, "query_hooks", [delete])
    found = find_accounts(OPERATOR, "ada@example.com")["data"]
    assert [account["accountid"] for account in found] == [remaining.accountid]
    assert users == []


@on_sqlite
def test_find_accounts_of_an_address_that_many_have(app, flask):
    """No statement has as many values as there are accounts."""
    db.connection().setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 120)
    accounts = [create_account(OPERATOR)["accountid"] for _ in range(250)]
    for accountid in accounts:
        fill(Profile, app.config["APPID"], 1, accountid=accountid)
    Profile.update(contactEmail="ada@example.com").execute()
    found = flask("find-accounts", "Ada@example.com")["data"]
    assert {account["accountid"] for account in found} == {*accounts}


@pytest.mark.parametrize(
    "column, days_from_now, options, purged",
    [
        ("expiresAt", -29, "", 0),
        ("expiresAt", -30, "", 2),
        ("endedAt", -29, "", 0),
        ("endedAt", -30, "", 2),
        ("endedAt", -7, "--days 7", 2),
        ("expiresAt", 1, "--days 0", 0),
    ],
)
def test_purge_sessions(flask, database_url, column, days_from_now, options, purged):
    """Of two sessions, which have ended or expired, or will."""
    fill(Session, "default", 2)
    moment = timestamp(time.time_ns() + days_from_now * 86_400 * 10**9)
    Session.update({"expiresAt": "9999", column: moment}).execute()
    done = flask("purge-sessions", *options.split())
    assert done == {"object": "purge", "count": purged}
    assert len(stored(database_url)["session"]) == 2 - purged


@on_sqlite
def test_a_purge_that_fails_keeps_what_it_has_done(app, fail, database_url):
    """It deletes a thousand at a time."""
    last, *_ = fill(Session, "default", 1_100)
    event = f"DELETE ON session WHEN OLD.sessionid = '{last['sessionid']}'"
    execute(database_url, f"CREATE TRIGGER x BEFORE {event} {ABORT}")
    assert fail("purge-sessions") == f"Error: {DEFECT}"
    assert len(stored(database_url)["session"]) == 100


@on_mysql
def test_a_purge_waits_for_no_session_that_it_keeps(flask, user, database_url):
    """Another client has locked one of many."""
    fill(Session, "default", 500)
    Session.update(expiresAt="9999").execute()
    fill(Session, "default", 2)
    lock = "UPDATE session SET duration = 1 WHERE sessionid = %s"
    with cursor_of(database_url) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(lock, [user.session["sessionid"]])
        assert flask("purge-sessions")["count"] == 2


def test_delete_account_of_an_administrator(flask, fail, administrator, database_url):
    """It has to become an ordinary account first, as over HTTP."""
    before = stored(database_url)
    line = fail("delete-account", administrator.accountid)
    reason = "it is an administrator; first run set-administrator --off"
    assert line == f"Error: invalid-account: {reason}"
    assert stored(database_url) == before
    flask("set-administrator", administrator.accountid, "--off")
    deletion = flask("delete-account", administrator.accountid)
    assert (deletion["profiles"], deletion["sessions"]) == (0, 1)


# The commands that write. ACCOUNT and SESSION are a user's.
WRITES = [
    "create-account --key x",
    "create-administrator",
    "create-session ACCOUNT",
    "set-administrator ACCOUNT",
    "end-session SESSION",
    "end-sessions ACCOUNT",
    "end-sessions --all",
    "delete-account ACCOUNT",
    "purge-sessions --days 0",
    "demo",
]


def fail_once(monkeypatch, position):
    """A conflict at this position among the statements that write or lock.

    Return a list, which has the statement once that has failed.
    """
    execute_sql = MySQL.execute_sql
    positions = itertools.count()
    failed = []

    def execute(self, sql, params=None):
        locks = re.match("INSERT|UPDATE|DELETE", sql) or sql.endswith("FOR UPDATE")
        if locks and next(positions) == position:
            failed.append(sql)
            raise OperationalError(1213, "Deadlock found")
        return execute_sql(self, sql, params)

    monkeypatch.setattr(MySQL, "execute_sql", execute)
    return failed


@on_mysql
@pytest.mark.parametrize("command", WRITES)
def test_a_conflict_is_retried_wherever_a_command_meets_it(
    app, invoke, monkeypatch, command
):
    for position in itertools.count():
        fill(Session, "default", 1)  # has expired
        user = sign_in(app)
        words = command.replace("ACCOUNT", user.accountid)
        words = words.replace("SESSION", user.session["sessionid"])
        with monkeypatch.context() as patch:
            failed = fail_once(patch, position)
            done = invoke(*words.split())
        assert done.exit_code == 0, (failed, done.output)
        if not failed:
            break
    assert position > 0


def test_a_defect_is_one_line_after_its_traceback(invoke, user, database_url, caplog):
    """The traceback has the error's type and code, but not what the driver quotes."""
    execute(database_url, "CREATE UNIQUE INDEX one ON session (accountid)")
    done = invoke("create-session", user.accountid)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"Error: {DEFECT}"
    code = "SQLITE_CONSTRAINT_UNIQUE" if "sqlite" in database_url else "1062"
    assert caplog.text.count("Traceback") == 1
    assert re.search(
        f"commands.py(?s:.*)peewee.IntegrityError: IntegrityError {code}\n", caplog.text
    )
    assert user.accountid not in caplog.text + done.stderr


def test_the_demo_may_be_repeated(invoke, database_url):
    """Each time, it creates three accounts, each with a default profile."""
    for _ in range(2):
        printed = invoke("demo").stdout
        assert printed.count("\ncurl ") == 5
        assert printed.count("\nexport ") == 4
    select = "SELECT accountid, profileid FROM {} ORDER BY accountid"
    profiles = execute(database_url, select.format("profile"))
    accounts = "account WHERE NOT administrator"
    assert execute(database_url, select.format(accounts)) == profiles
    assert len(profiles) == 6


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_lines_of_the_demo_work(serve, make_app, database_url, monkeypatch):
    service = serve(database_url)
    monkeypatch.setenv("FLASK_RUN_PORT", str(service.port))
    runner = make_app(APPID="default").test_cli_runner()
    printed = runner.invoke(args=["demo"]).stdout
    lines = re.findall("(?m)^curl.*", printed)
    answers = [subprocess.check_output(f"{line} -s", shell=True) for line in lines]
    updated, created, sessions, profiles, own = map(json.loads, answers)
    assert profiles == own == [created, updated]
    assert len(sessions) == 2


# The copy of a database

TABLES = {"account", "profile", "session"}
TEXTS = [
    None,
    "",
    "NULL",
    "a\0b",
    "\\'\";--",
    "%s %(id)s ?",
    "\r\n\x1a",
    "é\U0001f600\ufeff",
    "é" * 10_000,
]


@pytest.fixture
def source(administrator, database_url):
    """The rows that are copied, more than are copied at once."""
    administrator.create(named("name", default="true"))
    fill(Session, "Shop", 300)
    profiles = fill(Profile, "Shop", 300)
    for text in TEXTS:
        profileid = profiles.pop()["profileid"]
        changed = Profile.update(website=text)
        changed.where(Profile.profileid == profileid).execute()
    return stored(database_url)


def test_a_copy_has_every_value_of_every_column(invoke, source, target):
    done = invoke("copy-database", target)
    copied = {"object": "copy", "accounts": 3, "profiles": 301, "sessions": 301}
    assert json.loads(done.stdout) == copied
    assert done.stderr == ""  # progress is for a terminal
    assert stored(target) == source


def test_a_copy_of_a_database_without_tables_fails(
    empty_database_url, make_app, monkeypatch, tmp_path
):
    """It may be the wrong one, so only commands that create something add tables."""
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    execute(empty_database_url, "CREATE TABLE users (id INTEGER)")
    invoke = make_app(DATABASE_URL=empty_database_url).test_cli_runner().invoke
    done = invoke(args=["copy-database", f"sqlite:///{tmp_path}/copy.db"])
    assert done.exit_code == 1
    assert re.match("Error: database-unavailable: .*(no such table|1146)", done.stderr)
    assert db.get_tables() == ["users"]
    assert not (tmp_path / "copy.db").exists()


@on_sqlite
@pytest.mark.parametrize("target", ["mysql"], indirect=True)
def test_a_copy_waits_for_a_slow_target(flask, target, monkeypatch):
    """Once it has connected, longer than a request does: that would be 10 seconds."""
    connect = MySQL.connect
    time_outs = []

    def connect_and_note(self, *args):
        time_outs.append(self.connect_params.get("read_timeout"))
        return connect(self, *args)

    monkeypatch.setattr(MySQL, "connect", connect_and_note)
    flask("copy-database", target)
    assert time_outs == [10, None]


@on_sqlite
def test_a_copy_shows_its_progress_on_a_terminal(app, source, target):
    terminal = StringIO()
    terminal.isatty = lambda: True
    with redirect_stderr(terminal):
        app.cli.commands["copy-database"].main([target], standalone_mode=False)
    shown = re.findall("[0-9]+%", terminal.getvalue())
    assert shown[0] == "0%"
    assert shown[-1] == "100%"
    assert len({*shown}) > 4


@on_sqlite
@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_target_that_has_rows_is_refused(flask, fail, user, target, table):
    user.create(named("Ada"))
    flask("copy-database", target)
    for other in TABLES - {table}:
        execute(target, f"DELETE FROM {other}")
    line = fail("copy-database", target)
    assert line == "Error: the target already has rows"


@on_sqlite
def test_a_target_that_is_malformed(fail):
    line = fail("copy-database", "postgres://u:secret@h/d")
    assert line.startswith("Error: the target DATABASE_URL=***: must look like sqlite")
    assert "secret" not in line


AWAY = ["sqlite:////missing/secret.db", "mysql://secret:secret@127.0.0.1:1/x"]
if SERVER:
    AWAY.append(re.sub("//.*@", "//secret:secret@", mysql_url("x")))


@on_sqlite
@pytest.mark.parametrize("url", AWAY)
def test_a_target_that_is_away(fail, url):
    line = fail("copy-database", url)
    assert line.startswith("Error: the target: ")
    assert "secret" not in line


@on_sqlite
def test_a_copy_of_a_damaged_row_stores_nothing(fail, database_url, source, target):
    """The error does not name DATABASE_URL, which is the target's."""
    text = "CAST(x'736563726574ff' AS TEXT)"  # "secret", and no UTF-8
    execute(database_url, f"UPDATE session SET csrfToken = {text}")
    line = fail("copy-database", target)
    assert line == "Error: database-unavailable: OperationalError unknown"
    assert not any(stored(target).values())


@on_sqlite
@pytest.mark.parametrize(
    "target, sql, reason",
    [
        ("sqlite", f"{REFUSAL} {ABORT}", "IntegrityError SQLITE_CONSTRAINT_TRIGGER"),
        ("mysql", f"{REFUSAL} FOR EACH ROW KILL CONNECTION_ID()", "OperationalError "),
        ("mysql", "ALTER TABLE session MODIFY csrfToken CHAR(3)", "DataError 1406"),
    ],
    indirect=["target"],
)
def test_a_copy_that_a_target_refuses_stores_nothing(
    app, flask, fail, target, sql, reason
):
    flask("copy-database", target)  # of no row yet: it makes the tables
    execute(target, sql)
    sign_in(app)
    assert fail("copy-database", target).startswith(f"Error: the target: {reason}")
    assert not any(stored(target).values())


@on_sqlite
def test_a_target_in_a_variable(flask, source, target, monkeypatch):
    monkeypatch.setenv("TARGET_DATABASE_URL", target)
    flask("copy-database")
    assert stored(target) == source


@on_sqlite
@pytest.mark.parametrize("target", ["mysql"], indirect=True)
def test_rows_that_exceed_a_packet_together(flask, app, database_url, target):
    """MariaDB's max_allowed_packet is 16 MB, MySQL's 64 MB."""
    fill(Profile, "Shop", 50)
    text = "x" * (execute(target, "SELECT @@max_allowed_packet")[0][0] // 40)
    Profile.update(website=text).execute()
    flask("copy-database", target)
    assert stored(target) == stored(database_url)
