"""The Flask commands. Each but ``demo`` prints one JSON object on one line."""

import json
import os
import sys
from contextlib import closing

import click
from flask import Blueprint

import accounts
import operations
from config import parse_database_url, settings
from database import connection, db, run
from engines import ENGINES
from errors import ServiceError, SettingError
from models import MODELS, make_tables
from rows import read_tables
from validators import example_body

BATCH = 500  # rows in a statement of a copy
ACCOUNTID = click.Argument(["accountid"])
APPID = click.Option(["--appid"], help="The application.  [default: the service's own]")

commands = Blueprint("commands", __name__, cli_group=None)


def command(function, *parameters):
    """Make a function a command of that name, with its first sentence as help."""

    def invoke(**options):
        try:
            if "appid" in options:
                options["appid"] = operations.checked_appid(options["appid"])
            with connection():
                result = function(**options)
        except ServiceError as error:
            raise click.ClickException(error.code) from error
        show(result if isinstance(result, str) else json.dumps(result))

    name, help = function.__name__.replace("_", "-"), function.__doc__.partition(".")[0]
    commands.cli.command(name, params=[*parameters], help=f"{help}.")(invoke)


def show(text):
    """Print what is stored by now. Raises ClickException when it cannot be written."""
    if not sys.stdout:
        raise click.ClickException("cannot write the output: it is closed")
    try:
        click.echo(text)
    except OSError as error:  # Python would try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(
            f"cannot write the output: {error.strerror}"
        ) from error


def copy_database(database_url):
    """Copy all that the configured database holds at one moment into an empty one. Or nothing."""
    url, hidden = (
        parse_database_url(database_url),
        not (sys.stderr and sys.stderr.isatty()),
    )
    patient = url.server | {"read_timeout": 3_600}  # the commit of many rows takes long
    target = ENGINES[url.engine](url._replace(server=patient))
    target.refused = f"{url.engine}://***"
    make_tables(target)
    with closing(target), connection(target), target.writing(), connection():
        if any(count_rows(target, model) for model in MODELS):
            raise SettingError("DATABASE_URL", target.refused, "has rows already")
        db.execute_sql("BEGIN")
        length = 0 if hidden else sum(count_rows(db, model) for model in MODELS)
        with click.progressbar(length=length, file=sys.stderr, hidden=hidden) as bar:
            counts = {f"{m.TABLE}s": copy_table(m, target, bar) for m in MODELS}
        db.execute_sql("ROLLBACK")
    return {"object": "copy", **counts}


def copy_table(model, target, bar):
    """Copy the rows of a table, by its primary key; return how many there are in both databases."""
    table, names = model.TABLE, model._meta.sorted_field_names
    columns, marks = ", ".join(names), ", ".join([target.param] * len(names))
    select = f"SELECT {columns} FROM {table} WHERE {names[0]} > ? ORDER BY {names[0]} LIMIT {BATCH}"
    last, count = "" if names[0] == "accountid" else 0, 0
    while rows := run(select, last).fetchall():
        with connection(
            target
        ):  # whose errors are told from those of the configured one
            target.cursor().executemany(
                f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows
            )
        last, count = rows[-1][0], count + len(rows)
        bar.update(len(rows))
    if count != count_rows(target, model):
        raise SettingError(
            "DATABASE_URL", target.refused, f"has another number of {table}s"
        )
    return count


def count_rows(engine, model):
    with connection(engine):
        return engine.execute_sql(f"SELECT COUNT(*) FROM {model.TABLE}").fetchone()[0]


def init_db():
    """Make the missing tables; fail when a table lacks a column."""
    make_tables()
    read_tables()
    return {"object": "database", "engine": db.kind}


def demo():
    """Make a few accounts with profiles, and print a curl line for each operation."""
    appid, names = settings()["APPID"], settings()["USER_PROFILE_FIELDS"]
    body = example_body(names, settings()["PROFILE_LENGTHS"])
    for _ in range(3):
        accountid = accounts.create_account(appid)["accountid"]
        caller = accounts.Caller(accountid, False, appid)
        profile = operations.create_profile(caller, accountid, body)
    administrator = accounts.create_account(appid, administrator=True)
    user, admin = (
        f"-H 'Authorization: Bearer {accounts.create_session(each, 28_800)['token']}'"
        for each in (accountid, administrator["accountid"])
    )
    page = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}/"
    form = " ".join(
        f"--data-urlencode '{name}={value}'" for name, value in body.items()
    )
    return f"""\
Made an administrator and three accounts with a profile each. With the service running
(flask run), paste any of these into another terminal, or a token into its page, {page}

# as a user: update-profile (with the same values, so that only updatedAt changes), create-profile
curl -X PATCH {user} {form} '{page}api/user/update-profile?profileid={profile["profileid"]}'
curl -X POST {user} {form} -d default=true '{page}api/user/create-profile?accountid={accountid}'

# as the administrator: sessions, profiles
curl {admin} '{page}api/administrator/sessions'
curl {admin} '{page}api/administrator/profiles?limit=2'
"""


ADMINISTRATOR = click.Option(
    ["--administrator"], is_flag=True, help="Make it an administrator."
)
DURATION = click.Option(
    ["--duration"],
    type=click.IntRange(1, 2**31 - 1),
    default=28_800,
    help="In seconds.  [28800]",
)
DAYS = click.Option(
    ["--days"], type=click.IntRange(0, 36_500), default=30, help="How long ago.  [30]"
)
OFF = click.Option(["--off"], is_flag=True, help="Make it an ordinary account again.")
command(accounts.create_account, APPID, ADMINISTRATOR)
command(accounts.create_session, ACCOUNTID, DURATION)
command(accounts.list_administrators, APPID)
command(accounts.find_accounts, click.Argument(["email"]), APPID)
command(accounts.set_administrator, ACCOUNTID, OFF)
command(accounts.end_session, click.Argument(["sessionid"]))
command(accounts.end_sessions, ACCOUNTID)
command(accounts.delete_account, ACCOUNTID)
command(accounts.purge_sessions, DAYS)
command(copy_database, click.Argument(["database_url"]))
command(init_db)
command(demo)
