"""The Flask commands. Each but ``demo`` prints one JSON object on one line."""

import json
import os
from collections.abc import Callable
from typing import Any

import click
from flask import Blueprint

import accounts
import operations
from database import connection, db
from errors import ServiceError

SECONDS = click.IntRange(1, 2**31 - 1)  # as many as the column holds
DAYS_AGO = click.IntRange(0, 36_500)
ACCOUNTID = click.Argument(["accountid"])
APPID = click.Option(["--appid"], help="The application.  [default: the service's own]")
ADMINISTRATOR = click.Option(["--administrator"], is_flag=True, help="Make it an administrator.")
OFF = click.Option(["--off"], is_flag=True, help="Make it an ordinary account again.")
DURATION = click.Option(
    ["--duration"], type=SECONDS, default=28_800, help="In seconds.", show_default=True
)
DAYS = click.Option(["--days"], type=DAYS_AGO, default=30, help="How long ago.", show_default=True)

commands = Blueprint("commands", __name__, cli_group=None)


def command(*parameters: click.Parameter) -> Callable[..., Any]:
    """Return a decorator that makes a function a command with these parameters.

    The command has the name of the function, and the first sentence of its docstring as its help.
    It prints what the function returns, an object as JSON. A failure is one line, the code.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(**options: Any) -> None:
            try:
                if "appid" in options:
                    options["appid"] = operations.checked_appid(options["appid"])
                with connection():
                    result = function(**options)
            except ServiceError as error:
                raise click.ClickException(error.code) from error
            click.echo(result if isinstance(result, str) else json.dumps(result))

        name, help = function.__name__.replace("_", "-"), (function.__doc__ or "").partition(".")[0]
        commands.cli.command(name, params=[*parameters], help=f"{help}.")(run)
        return function

    return add


command(APPID, ADMINISTRATOR)(accounts.create_account)
command(click.Argument(["email"]), APPID)(accounts.find_accounts)
command(ACCOUNTID, OFF)(accounts.set_administrator)
command(ACCOUNTID, DURATION)(accounts.create_session)
command(click.Argument(["sessionid"]))(accounts.end_session)
command(ACCOUNTID)(accounts.end_sessions)
command(DAYS)(accounts.purge_sessions)


@command()
def init_db() -> dict[str, Any]:
    """Make the missing tables and indexes; fail when a table lacks a column."""
    return {"object": "database", "engine": db.engine}  # connection() has made them


@command()
def demo() -> str:
    """Make a few accounts with profiles, and print a curl line for each operation."""
    settings = operations.settings()
    body, appid = settings.example_body(), settings.appid
    for _ in range(3):
        accountid = accounts.create_account(appid)["accountid"]
        caller = accounts.SignedIn(accountid, False, appid)
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
