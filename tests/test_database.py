"""Tables, rows and transactions in one process: nothing is stored halfway or lost."""

import re
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from stat import filemode
from threading import Event
from unittest.mock import Mock

import click
import peewee
import pytest
from click.testing import CliRunner
from service import (
    PROCFILE,
    TABLES,
    Program,
    Threads,
    assert_error,
    at_once,
    close_connection,
    cursor_of,
    execute,
    named,
    on_mysql,
    on_sqlite,
    run_python,
    sign_in,
    user_with,
)
from werkzeug.test import Client

import database
import models
from accounts import create_account, delete_account, list_administrators
from callers import OPERATOR
from config import parse_database_url
from database import built_once, db, retry_on_conflict
from errors import ServiceError
from models import Account, Profile, Session, create_tables
from profiles import (
    create_profile,
    delete_profile,
    set_default_profile,
    update_profile,
)
from sessions import create_session, end_sessions

# Eight processes that start at once, when the first one closes the pipe.
FIRST_STARTS = """
import os
from app import create_app
from models import check_tables
waiting, signal = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(signal)
        os.read(waiting, 1)
        create_app()
        check_tables()
        os._exit(0)
os.close(signal)
print(*[os.wait()[1] for _ in range(8)])
"""
# One NULL, the account's, when there is neither a profile nor a default.
PROFILEIDS = "SELECT profileid FROM account UNION ALL SELECT profileid FROM profile"
CONFLICT_AT_FIRST = """FOR EACH ROW IF @met IS NULL THEN
    SET @met = 1; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF"""


def create(caller, name="name", **more):
    """Create a profile by the operation."""
    return create_profile(caller, caller.accountid, named(name, **more))


def in_context(call, *values):
    """The call, with the app's context that is pushed here, for another thread."""
    return partial(copy_context().run, call, *values)


def create_with_default(caller):
    return create(caller, default="true")


def committed(url, client):
    """The names of the application's profiles, as another client sees them."""
    sql = f"SELECT fullName FROM profile WHERE appid = '{client.appid}' ORDER BY id"
    return [name for (name,) in execute(url, sql)]


@pytest.mark.parametrize("table", ["account", "profile"])
def test_a_profile_and_its_default_are_stored_both_or_neither(
    empty_database_url, make_app, table
):
    user = sign_in(make_app(DATABASE_URL=empty_database_url))
    rename = f"ALTER TABLE {table} RENAME COLUMN"
    execute(empty_database_url, f"{rename} profileid TO elsewhere")
    assert user.create(named("name", default="true")).status_code == 503
    execute(empty_database_url, f"{rename} elsewhere TO profileid")
    assert execute(empty_database_url, PROFILEIDS) == [(None,)]


def test_a_row_made_in_the_nanosecond_of_another_one(
    app, user, database_url, monkeypatch
):
    moment = models.next_nanoseconds() + 10**12
    for name in ("first", "second"):
        # Patched since only two processes, each with its own clock, meet such a moment.
        monkeypatch.setattr(models, "latest", moment)
        create(user.caller, name, default="true")
    assert committed(database_url, user) == ["first", "second"]


@pytest.mark.parametrize("model", [Profile, Session])
def test_a_row_whose_id_others_have_taken_four_times(user, monkeypatch, model):
    """Each time it gets the id of a later moment; the fifth one is free."""
    moment = models.next_nanoseconds() + 10**12

    def insert():
        if model is Profile:
            return create(user.caller)["profileid"]
        return create_session(OPERATOR, user.accountid)["sessionid"]

    monkeypatch.setattr(models, "latest", moment)
    inserted = [insert() for _ in range(4)]
    monkeypatch.setattr(models, "latest", moment)
    inserted.append(insert())
    own = (model.accountid == user.accountid) & (model.id > moment)
    rows = model.select().where(own).order_by(model.id)
    assert [getattr(row, model.KEY) for row in rows] == inserted
    assert [row.id - moment for row in rows] == [1, 2, 3, 4, 5]


@on_sqlite
def test_the_error_of_a_transaction_is_logged_beside_that_of_its_rollback(
    empty_database_url, make_app, caplog
):
    """SQLite has rolled back by itself, as it does when the disk is full."""
    user = sign_in(make_app(DATABASE_URL=empty_database_url))
    user.application.test_client().get("/health")
    trigger = "BEFORE INSERT ON profile BEGIN SELECT RAISE(ROLLBACK, 'the reason'); END"
    execute(empty_database_url, f"CREATE TRIGGER full {trigger}")
    response = user.create(named("Ada", default="true"))
    assert_error(response, 503, "database-unavailable")
    assert "SQLITE_ERROR: cannot rollback - no transaction is active" in caplog.text
    assert "IntegrityError SQLITE_CONSTRAINT_TRIGGER" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM account",
        "UPDATE account SET appid = 'another'",
        "UPDATE profile SET accountid = 'acct_0123456789abcdef'",
        "UPDATE session SET appid = 'another'",
    ],
)
def test_every_profile_and_session_has_its_account(app, user, statement):
    user.create(named("name"))
    with pytest.raises(peewee.IntegrityError):
        db.execute_sql(f"{statement} WHERE accountid = '{user.accountid}'")


def test_first_starts_at_once_create_every_table_once(empty_database_url):
    done = run_python("-c", FIRST_STARTS, DATABASE_URL=empty_database_url)
    assert (done.stdout, done.stderr) == ("0 0 0 0 0 0 0 0\n", "")
    assert execute(empty_database_url, "SELECT * FROM account, profile, session") == []


def test_an_app_creates_the_tables_and_leaves_no_connection(
    empty_database_url, make_app
):
    """It would survive into forked processes."""
    make_app(DATABASE_URL=empty_database_url)
    assert db.is_closed()
    assert execute(empty_database_url, "SELECT * FROM account, profile, session") == []


@on_sqlite
def test_an_app_in_a_command_of_another_program_creates_the_tables(
    empty_database_url, make_app
):
    """Only ``flask``, which looks for a command, leaves that to the command."""
    command = click.Command(
        "x", callback=partial(make_app, DATABASE_URL=empty_database_url)
    )
    assert CliRunner().invoke(command).exit_code == 0
    assert execute(empty_database_url, "SELECT * FROM account, profile, session") == []


def test_a_write_is_the_first_statement_of_a_process(
    empty_database_url, make_app, monkeypatch
):
    """In a command of a program's own."""
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context(), db.atomic():
        create_account(OPERATOR)
    assert len(execute(empty_database_url, "SELECT * FROM account")) == 1


def test_threads_may_all_be_the_first_that_creates_the_tables(
    empty_database_url, make_app, monkeypatch
):
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    app = make_app(DATABASE_URL=empty_database_url)

    def read():
        with app.app_context():
            return list_administrators(OPERATOR)["data"]

    assert at_once(*[read] * 4) == [[]] * 4


def test_a_first_connection_that_fails_is_closed(empty_database_url, make_app):
    """The next one creates the tables."""
    make_app(DATABASE_URL=empty_database_url)
    execute(empty_database_url, "DROP TABLE session")
    execute(empty_database_url, "CREATE TABLE session (x INTEGER)")  # another's
    make_app(DATABASE_URL=empty_database_url)
    for _ in range(2):
        with pytest.raises(peewee.OperationalError):
            db.connect()
        assert db.is_closed()
    execute(empty_database_url, "DROP TABLE session")
    db.connect()
    assert execute(empty_database_url, "SELECT * FROM session") == []


@pytest.mark.parametrize("count", range(1, 5))
def test_a_first_start_that_is_killed_is_completed_by_the_next(
    empty_database_url, make_app, monkeypatch, count
):
    """After each of the statements that create a table or an index."""
    make_app(DATABASE_URL=empty_database_url)
    indexes = {name: db.get_indexes(name) for name in TABLES}
    for name in reversed(TABLES):
        execute(empty_database_url, f"DROP TABLE {name}")
    statements = []

    def kill(event):
        if event.sql.startswith(("CREATE", "ALTER")):
            statements.append(event.sql)
            if len(statements) == count:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(db.obj, "query_hooks", [kill])
        create_tables(db)
    make_app(DATABASE_URL=empty_database_url)
    assert {name: db.get_indexes(name) for name in TABLES} == indexes


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("command", [PROCFILE, ["flask", "run"]], ids=" ".join)
def test_a_server_creates_the_tables_before_it_serves(
    empty_database_url, tmp_path, command
):
    program = Program(tmp_path, DATABASE_URL=empty_database_url)
    program.environment["FLASK_RUN_PORT"] = str(program.port)
    program.start(*command)
    try:
        program.wait_until_up()
        assert Client(program.app).get("/health").status_code == 200
    finally:
        program.kill()


@on_mysql
def test_a_user_of_the_database_with_four_rights_is_enough(
    empty_database_url, make_app
):
    """Once the tables exist."""
    make_app(DATABASE_URL=empty_database_url)
    db.connect()
    with user_with(empty_database_url, "SELECT, INSERT, UPDATE, DELETE") as url:
        user = sign_in(make_app(DATABASE_URL=url))
        assert user.create(named("Ada", default="true")).status_code == 201
        close_connection()


def test_an_open_connection_is_reused_if_asked_for(app):
    connection = db.connection()
    assert db.connect(reuse_if_open=True) is False
    assert db.connection() is connection
    with pytest.raises(peewee.OperationalError, match="already opened"):
        db.connect()


@on_sqlite
def test_the_file_keeps_what_is_acknowledged_and_is_its_owners_alone(
    app, user, database_url
):
    assert db.pragma("journal_mode") == "wal"
    assert db.pragma("synchronous") == 2  # FULL
    for end in ("", "-wal", "-shm"):
        file = Path(parse_database_url(database_url).name + end)
        assert filemode(file.stat().st_mode) == "-rw-------"


@on_sqlite
def test_a_new_file_behind_a_symbolic_link_is_its_owners_alone(make_app, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    make_app(DATABASE_URL=f"sqlite:///{link}")
    assert filemode((tmp_path / "real.db").stat().st_mode) == "-rw-------"


@on_mysql
@pytest.mark.parametrize("caller", ["the operator", "the user"])
@pytest.mark.parametrize("operation", [set_default_profile, delete_profile])
def test_an_account_is_locked_before_its_profile(user, monkeypatch, operation, caller):
    """Whoever locks both does so in this order: in a circle, each would wait."""
    profileid = create(user.caller, default="true")["profileid"]
    locked = []

    def note(event):
        if "FOR UPDATE" in event.sql:
            locked.append(re.search("FROM `(.+?)`", event.sql)[1])

    monkeypatch.setattr(db.obj, "query_hooks", [note])
    operation(OPERATOR if caller == "the operator" else user.caller, profileid)
    assert locked == ["account", "profile"]


@on_mysql
def test_an_account_is_locked_before_its_default_profile_is_stored(user, monkeypatch):
    """Its foreign key would share the account, which two at once could not change."""
    locked = []

    def note(event):
        if re.search("FOR UPDATE|^INSERT", event.sql):
            locked.append(re.search("(FROM|INTO) `(.+?)`", event.sql)[2])

    monkeypatch.setattr(db.obj, "query_hooks", [note])
    create_with_default(user.caller)
    assert locked == ["account", "profile"]


def test_operations_within_a_transaction_join_it(app, user, database_url):
    with db.atomic():
        first = create(user.caller, "first", default="true")
        update_profile(user.caller, first["profileid"], named("changed"))
        assert committed(database_url, user) == []
    assert committed(database_url, user) == ["changed"]


def test_an_error_undoes_the_whole_transaction(app, user, database_url):
    caller = user.caller
    with pytest.raises(ServiceError), db.atomic():
        create(caller, "never", default="true")
        create(caller, "")
    create(caller, "next")
    assert committed(database_url, user) == ["next"]
    assert user.caller.profileid is None


@pytest.fixture
def meet_in_a_deadlock(app, user):
    """Decorates what creates for two accounts; calls it twice at once.

    Each call locks its own account, waits until both have, and locks the other's.
    """
    callers = [user.caller, sign_in(app).caller]
    locked = {caller.accountid: Event() for caller in callers}

    def create_for_both(first, second):
        create_with_default(first)
        locked[first.accountid].set()
        locked[second.accountid].wait(40)
        end_sessions(OPERATOR, second.accountid)  # in a nested transaction
        create_with_default(second)

    def meet(decorate):
        call = decorate(db.atomic()(create_for_both))
        return at_once(in_context(call, *callers), in_context(call, *callers[::-1]))

    return meet


@on_mysql
def test_a_deadlock_of_nested_transactions_is_repeated(user, meet_in_a_deadlock):
    meet_in_a_deadlock(retry_on_conflict)
    assert Profile.select().where(Profile.appid == user.appid).count() == 4


@on_mysql
def test_a_deadlock_in_a_transaction_of_a_program_is_raised_as_it_is(
    meet_in_a_deadlock,
):
    """Not as the error of Peewee's rollback, 1305, to a savepoint that is gone."""

    def return_number(call):
        def wrapper(*callers):
            try:
                call(*callers)
            except peewee.OperationalError as error:
                return error.args[0]

        return wrapper

    assert sorted(meet_in_a_deadlock(return_number), key=str) == [1213, None]


@on_mysql
def test_a_repeated_create_in_a_transaction_returns_the_default_as_committed(
    app, administrator
):
    """A snapshot shows the account before it had one."""
    caller = administrator.caller
    create = partial(create_account, caller, idempotency_key="key")
    account = create()
    owner = Account.get_by_id(account["accountid"])
    with db.atomic():
        assert Account.select().count()
        (profile,) = at_once(in_context(create_with_default, owner))
        repeated = create()
    assert repeated["profileid"] == profile["profileid"]
    assert repeated["profile"] == profile


@on_mysql
@pytest.mark.parametrize(
    "event", ["UPDATE ON account", "INSERT ON profile", "UPDATE ON profile"]
)
def test_a_create_and_an_update_that_meet_a_conflict_are_repeated(
    empty_database_url, make_app, event
):
    """test_commands.py has the other writes."""
    app = make_app(DATABASE_URL=empty_database_url)
    caller = sign_in(app).caller
    trigger = f"CREATE TRIGGER conflict BEFORE {event} {CONFLICT_AT_FIRST}"
    execute(empty_database_url, trigger)
    with app.app_context():
        profileid = create_with_default(caller)["profileid"]
        update_profile(caller, profileid, named("changed"))
    assert db.execute_sql("SELECT @met").fetchone() == (1,)


@pytest.mark.parametrize(
    "error, begin, tries",
    [
        (1020, nullcontext, 2),
        (1180, nullcontext, 2),
        (1213, nullcontext, 2),
        (3101, nullcontext, 2),
        (1213, db.atomic, 1),
        (1064, nullcontext, 1),
    ],
)
def test_a_conflict_outside_a_transaction_is_repeated(app, error, begin, tries):
    """No other error is, and in a transaction its caller has to repeat all of it."""
    work = Mock(side_effect=[peewee.OperationalError(error, "near 1213"), None])
    with suppress(peewee.OperationalError), begin():
        retry_on_conflict(work)()
    assert work.call_count == tries


def test_what_a_program_handles_is_no_conflict_of_a_call(app):
    """Its own conflict is the context of any error that the call raises."""
    work = Mock(side_effect=peewee.ProgrammingError(1146, "no such table"))
    with pytest.raises(peewee.ProgrammingError):
        try:
            raise peewee.OperationalError(1213, "Deadlock found")
        except peewee.OperationalError:
            retry_on_conflict(work)()
    assert work.call_count == 1


@pytest.mark.parametrize(
    "condition",
    [
        lambda key: Account.accountid.is_null(),
        lambda key: (Account.accountid == key) & (Account.appid == "shop"),
    ],
    ids=["an argument is left out", "a value of its own"],
)
def test_the_values_of_a_query_that_is_built_once_are_its_arguments(app, condition):
    @built_once
    def select_account(*, key):
        return Account.select().where(condition(key))

    with pytest.raises(TypeError, match="values of select_account.* its arguments"):
        select_account(key="x")


@on_sqlite
def test_a_read_waits_while_another_connection_locks_the_whole_file(
    empty_database_url, make_app
):
    """As the last connection of another process does when it closes."""
    administrator = sign_in(make_app(DATABASE_URL=empty_database_url))
    caller = administrator.caller
    db.close()
    with Threads(1) as pool, cursor_of(empty_database_url) as cursor:
        cursor.execute("PRAGMA locking_mode = EXCLUSIVE")
        cursor.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(Account.get_by_id, caller.accountid)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        cursor.connection.close()
        assert waiting.result() == caller


@on_sqlite
def test_a_write_beside_a_lock_fails_at_its_deadline(app, monkeypatch, database_url):
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    with cursor_of(database_url) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        with pytest.raises(peewee.OperationalError, match="^database is locked$"):
            create_account(OPERATOR)
        with pytest.raises(peewee.OperationalError, match="^database is locked$"):
            Account.update(profileid=None).execute()


@on_mysql
def test_a_create_for_an_account_that_is_deleted_during_its_transaction(user):
    caller = user.caller
    with db.atomic():
        assert Account.select().exists()  # what is read later is as old as this
        at_once(in_context(delete_account, OPERATOR, caller.accountid))
        with pytest.raises(ServiceError, match="^invalid-accountid$"):
            create_profile(caller, caller.accountid, named("Ada"))


@on_sqlite
def test_a_file_that_is_only_read_keeps_its_time_of_modification(app):
    close_connection()
    file = Path(db.database)
    before = file.stat().st_mtime_ns
    Account.select().first()
    assert file.stat().st_mtime_ns == before


@on_mysql
def test_the_configuration_of_the_server_does_not_matter(user, database_url):
    """Here a connection that has other settings is set up again."""
    db.execute_sql("SET autocommit = 0, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'")
    db.execute_sql("SET wait_timeout = 1000, completion_type = 'CHAIN'")
    db.execute_sql("SET foreign_key_checks = 0, default_storage_engine = 'MyISAM'")
    db.execute_sql("SET sql_select_limit = 1, sql_big_selects = 0, max_join_size = 1")
    db.execute_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    db.execute_sql(db.connect_params["init_command"])
    text = "a'\\\"b"
    create_profile(user.caller, user.accountid, named("name") | {"full-name": text})
    assert committed(database_url, user) == [text]
    assert db.execute_sql("SELECT 1 UNION SELECT 2").fetchall() == ((1,), (2,))
    with pytest.raises(peewee.DataError):
        db.execute_sql(f"UPDATE account SET profileid = '{'x' * 65}'")
    names = "wait_timeout completion_type foreign_key_checks default_storage_engine"
    names += " sql_big_selects"
    variables = ", ".join(f"@@{name}" for name in names.split())
    version = db.execute_sql("SELECT VERSION()").fetchone()[0]
    isolation = "tx_isolation" if "MariaDB" in version else "transaction_isolation"
    found = db.execute_sql(f"SELECT {variables}, @@{isolation}").fetchone()
    assert found == (60, "NO_CHAIN", 1, "InnoDB", 1, "REPEATABLE-READ")
