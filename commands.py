"""The Flask commands. Each but ``demo`` prints one JSON object on one line."""

import json
import os
import re
import sys
from typing import Any

import click
from flask import Blueprint

import accounts
import copying
import operations
from config import settings
from database import connection, transaction
from database_url import parse_database_url
from errors import ServiceError
from tables import db


class Number(click.IntRange):
    """A whole number in ASCII digits and nothing else, as in the settings."""

    def convert(self, value: Any, *args: Any) -> Any:
        if not re.fullmatch("[0-9]{1,10}", str(value)):
            self.fail(f"{value!r} is not a whole number.", *args)
        return super().convert(value, *args)


SECONDS, DAYS_AGO = Number(1, 2**31 - 1), Number(0, 36_500)  # as many as the column holds
ACCOUNTID = click.Argument(["accountid"])
APPID = click.Option(["--appid"], help="The application.  [default: the service's own]")
ADMINISTRATOR = click.Option(["--administrator"], is_flag=True, help="Make it an administrator.")
OFF = click.Option(["--off"], is_flag=True, help="Make it an ordinary account again.")
DURATION = click.Option(
    ["--duration"], type=SECONDS, default=28_800, help="In seconds.", show_default=True
)
DAYS = click.Option(["--days"], type=DAYS_AGO, default=30, help="How long ago.", show_default=True)

commands = Blueprint("commands", __name__, cli_group=None)


def command(function: Any, *parameters: click.Parameter, within: Any = connection) -> None:
    """Make a function a command that prints what it returns, an object as JSON.

    The command has the name of the function, and the first sentence of its docstring as its help.
    A failure is one line, the code.
    """

    def run(**options: Any) -> None:
        try:
            if "appid" in options:
                options["appid"] = operations.checked_appid(options["appid"])
            with within():
                show(function(**options))
        except ServiceError as error:
            raise click.ClickException(error.code) from error

    name, help = function.__name__.replace("_", "-"), (function.__doc__ or "").partition(".")[0]
    commands.cli.command(name, params=[*parameters], help=f"{help}.")(run)


def show(result: Any) -> None:
    """Print the result of a command. Raises ClickException when it cannot be written."""
    if not sys.stdout:
        raise click.ClickException("cannot write the output: it is closed")
    try:
        click.echo(result if isinstance(result, str) else json.dumps(result))
    except OSError as error:  # Python would try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"cannot write the output: {error.strerror}") from error


def copy_database(database_url: str) -> dict[str, Any]:
    """Copy all that the configured database holds into an empty one."""
    url, hidden = parse_database_url(database_url), not (sys.stderr and sys.stderr.isatty())
    # Each row is copied and compared.
    length = 0 if hidden else 2 * sum(m.select().count() for m in copying.MODELS)
    with click.progressbar(length=length, file=sys.stderr, hidden=hidden) as bar:
        return copying.copy_database(url, bar.update)


def init_db() -> dict[str, Any]:
    """Make the missing tables and indexes; fail when a table lacks a column."""
    return {"object": "database", "engine": db.kind}  # the first connection has made them


def demo() -> str:
    """Make a few accounts with profiles, and print a curl line for each operation."""
    body, appid = settings().example_body, settings().appid
    for _ in range(3):
        accountid = accounts.create_account(appid)["accountid"]
        caller = accounts.Caller(accountid, False, appid)
        profile = operations.create_profile(caller, accountid, body)
    administrator = accounts.create_account(appid, administrator=True)
    user, admin = (
        f"-H 'Authorization: Bearer {accounts.create_session(account, 28_800)['token']}'"
        for account in (accountid, administrator["accountid"])
    )
    page = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}/"
    form = " ".join(f"--data-urlencode '{k}={v}'" for k, v in body.items())
    return f"""\
Made an administrator and three accounts with a profile each. With the service running
(flask run), paste any of these into another terminal, or a token into its page, {page}

# update-profile, as a user (with the same values, so that only updatedAt changes)
curl -X PATCH {user} {form} '{page}api/user/update-profile?profileid={profile["profileid"]}'

# create-profile, as the same user
curl -X POST {user} {form} -d default=true '{page}api/user/create-profile?accountid={accountid}'

# sessions, as the administrator
curl {admin} '{page}api/administrator/sessions'

# profiles, as the administrator
curl {admin} '{page}api/administrator/profiles?limit=2'
"""


# What is new is shown before it is stored: no session is left whose token nobody has seen.
command(accounts.create_account, APPID, ADMINISTRATOR, within=transaction)
command(accounts.create_session, ACCOUNTID, DURATION, within=transaction)
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
