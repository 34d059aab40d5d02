"""The Flask commands. Each but ``demo`` prints one JSON object on one line."""

import json
import os
import sys
from contextlib import closing
from functools import wraps

import click
from flask import Blueprint
from peewee import DatabaseError

import accounts
import operations
from config import parse_database_url, settings
from database import ENGINES, connection, db, is_of_database, repeated
from errors import SettingError
from models import MODELS, Account, make_tables
from rows import read_tables
from validators import example_body

ACCOUNTID = click.Argument(["accountid"])
APPID = click.Option(["--appid"], help="The application.  [default: the service's own]")
COPIED_AT_ONCE = 100  # rows: with bodies of 64 KB a statement stays below 16 MB
PEOPLE = ("Eve", "Bob", "Ada")  # of the demo, as long as the name in the examples

commands = Blueprint("commands", __name__, cli_group=None)


def command(function, *parameters):
    """Make a function a command of its name, with its docstring as help."""

    @commands.cli.command(params=[*parameters])
    @wraps(function)
    def invoke(**options):
        allow_long_statements(db)
        result = function(**options)
        show(result if isinstance(result, str) else json.dumps(result))


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
        text = f"cannot write the output: {error.strerror}"
        raise click.ClickException(text) from error


def copy_database(database_url):
    """Copy all that the configured database holds into an empty one. Or nothing.

    What is copied was there at one moment.
    """
    url = parse_database_url(database_url)
    target = ENGINES[url.engine](url)
    allow_long_statements(target)
    counts = {f"{model.TABLE}s": 0 for model in MODELS}
    with closing(read_everything()) as batches, closing(target):
        try:
            make_tables(target)
            with target.writing():
                if any(model.select().exists(target) for model in MODELS):
                    raise DatabaseError("has rows already")
                # A failure to read the source is a ServiceError, not caught below.
                for model, rows in batches:
                    copy = model.insert_many(rows, model._meta.sorted_fields)
                    counts[f"{model.TABLE}s"] += copy.as_rowcount().execute(target)
                    if sys.stderr and sys.stderr.isatty():
                        click.echo(f"\r{sum(counts.values())} rows", err=True, nl=False)
        except Exception as error:
            if not is_of_database(error):
                raise
            reason = str(error).partition(" for user ")[0]
            raise SettingError(
                "DATABASE_URL", f"{target.kind}://***", reason
            ) from error
    return {"object": "copy", **counts}


def read_everything():
    """Yield models with lists of their rows, all of one moment of the database."""
    with connection(), db.atomic(db.one_moment):
        for model in MODELS:
            key = model._meta.primary_key
            ordered = model.select().order_by(key).limit(COPIED_AT_ONCE)
            last = "" if model is Account else 0
            while rows := list(ordered.where(key > last).tuples()):
                yield model, rows
                last = rows[-1][0]


def init_db():
    """Make the missing tables; fail when a table lacks a column."""
    repeated(make_tables)(db)
    read_tables()
    return {"object": "database", "engine": db.kind}


def demo():
    """Make a few accounts with profiles, and print curl lines to try them."""
    example = example_body(settings())
    for name in PEOPLE:  # the lines below are for the last one
        owner = accounts.create_account()["accountid"]
        caller = accounts.Caller(owner, False, settings()["APPID"])
        body = {
            field: text.replace("Ada", name).replace("ada", name.lower())
            for field, text in example.items()
        }
        profileid = operations.create_profile(caller, owner, body)["profileid"]
    administrator = accounts.create_account(administrator=True)
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


command(
    accounts.create_account,
    APPID,
    click.Option(["--administrator"], is_flag=True, help="Make it an administrator."),
)
command(
    accounts.create_session,
    ACCOUNTID,
    click.Option(
        ["--duration"],
        type=click.IntRange(1, 2**31 - 1),
        default=28_800,
        help="In seconds.  [28800]",
    ),
)
command(accounts.list_administrators, APPID)
command(accounts.find_accounts, click.Argument(["email"]), APPID)
command(
    accounts.set_administrator,
    ACCOUNTID,
    click.Option(["--off"], is_flag=True, help="Make it an ordinary account again."),
)
command(accounts.end_session, click.Argument(["sessionid"]))
command(accounts.end_sessions, ACCOUNTID)
command(accounts.delete_account, ACCOUNTID, APPID)
command(
    accounts.purge_sessions,
    click.Option(
        ["--days"],
        type=click.IntRange(0, 36_500),
        default=30,
        help="How long ago.  [30]",
    ),
)
command(copy_database, click.Argument(["database_url"]))
command(init_db)
command(demo)
