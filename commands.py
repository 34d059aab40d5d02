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
from database import connection, db, is_of_database
from engines import ENGINES
from errors import ServiceError, SettingError
from models import MODELS, make_file, make_missing, make_tables
from rows import ANY_ROW, copy_rows, read_tables
from validators import example_body

ACCOUNTID = click.Argument(["accountid"])
APPID = click.Option(["--appid"], help="The application.  [default: the service's own]")
PEOPLE = ("Eve", "Bob", "Ada")  # of the demo, as long as the name in the examples

commands = Blueprint("commands", __name__, cli_group=None)


def command(function, *parameters):
    """Make a function a command of that name, with its first sentence as help."""

    def invoke(**options):
        allow_long_statements(db)
        try:
            if "appid" in options:
                options["appid"] = operations.appid_or_own(options["appid"])
            with connection():
                result = function(**options)
        except ServiceError as error:
            raise click.ClickException(error.code) from error
        show(result if isinstance(result, str) else json.dumps(result))

    name = function.__name__.replace("_", "-")
    help = function.__doc__.partition(".")[0]
    commands.cli.command(name, params=[*parameters], help=f"{help}.")(invoke)


def allow_long_statements(engine):
    """Wait for the end of each statement, where a request would wait for 10 seconds."""
    engine.close()
    engine.connect_params.pop("read_timeout", None)  # of MySQL


def show(text):
    """Print what is stored by now. Raises ClickException when it cannot be written."""
    if not sys.stdout:
        raise click.ClickException("cannot write the output: it is closed")
    try:
        click.echo(text)
    except OSError as error:
        sys.stdout = None  # or Python tries again at its end
        reason = f"cannot write the output: {error.strerror}"
        raise click.ClickException(reason) from error


def copy_database(database_url):
    """Copy all that the configured database holds into an empty one. Or nothing.

    What is copied was there at one moment.
    """
    url = parse_database_url(database_url)
    target = ENGINES[url.engine](url)
    shown = f"{target.kind}://***"
    allow_long_statements(target)
    with closing(target), db.manual_commit():
        with connection():  # whose errors are ServiceErrors, unlike those of the target
            db.execute_sql("BEGIN")
        try:
            make_file(target)
            make_missing(target)
            with target.writing():
                if target.execute_sql(ANY_ROW).fetchone():
                    raise SettingError("DATABASE_URL", shown, "has rows already")
                counts = {f"{m.TABLE}s": copy_table(m, target) for m in MODELS}
        except Exception as error:
            if is_of_database(error):
                reason = str(error).partition(" for user ")[0]
                raise SettingError("DATABASE_URL", shown, reason) from error
            raise
        db.rollback()
    return {"object": "copy", **counts}


def copy_table(model, target):
    """Copy the rows of a table; show and return how many."""
    count = 0
    for copied in copy_rows(model, target):
        count += copied
        if sys.stderr and sys.stderr.isatty():
            click.echo(f"\r{count} {model.TABLE}s ", err=True, nl=False)
    return count


def init_db():
    """Make the missing tables; fail when a table lacks a column."""
    make_tables()
    read_tables()
    return {"object": "database", "engine": db.kind}


def demo():
    """Make a few accounts with profiles, and print a curl line for each operation."""
    own = settings()
    appid = own["APPID"]
    example = example_body(own["USER_PROFILE_FIELDS"], own["PROFILE_LENGTHS"])
    for name in PEOPLE:  # the lines below are for the last one
        owner = accounts.create_account(appid)["accountid"]
        caller = accounts.Caller(owner, False, appid)
        body = {}
        for field, text in example.items():
            body[field] = text.replace("Ada", name).replace("ada", name.lower())
        profileid = operations.create_profile(caller, owner, body)["profileid"]
    administrator = accounts.create_account(appid, administrator=True)
    user = authorization(owner)
    admin = authorization(administrator["accountid"])
    page = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}/"
    api = f"{page}api"
    form = " ".join(f"--data-urlencode '{name}={body[name]}'" for name in body)
    return f"""\
Made an administrator and three accounts with a profile each. With the service running
(flask run), paste any of these into another terminal, or a token into its page, {page}

# as a user: update-profile (the same values: only updatedAt changes), create-profile
curl -X PATCH {user} {form} '{api}/user/update-profile?profileid={profileid}'
curl -X POST {user} {form} -d default=true '{api}/user/create-profile?accountid={owner}'

# as the administrator: sessions, profiles
curl {admin} '{api}/administrator/sessions'
curl {admin} '{api}/administrator/profiles?limit=2'
"""


def authorization(accountid):
    """Return curl's option for a new session of the account."""
    session = accounts.create_session(accountid, 28_800)
    return f"-H 'Authorization: Bearer {session['token']}'"


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
command(accounts.delete_account, ACCOUNTID, APPID)
command(accounts.purge_sessions, DAYS)
command(copy_database, click.Argument(["database_url"]))
command(init_db)
command(demo)
