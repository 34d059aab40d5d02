"""The Flask commands: each prints one JSON object on one line, the last of its output."""

import json
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from flask import Blueprint

import accounts
import operations
from database import connection, create_tables, db
from errors import ServiceError
from models import timestamp
from validators import example_body

SECONDS = click.IntRange(1, 2**31 - 1)  # as many as the column holds
DAYS = click.IntRange(0, 36_500)
ACCOUNTID = click.argument("accountid")
APPID = click.option("--appid", help="The application.  [default: the service's own]")

commands = Blueprint("commands", __name__, cli_group=None)


def command(function: Callable[..., Any]) -> Any:
    """Make a function the command of its name. It prints what it returns, an object as JSON.

    A failure is one line, the code, after the reason if there is one.
    """

    @commands.cli.command()
    @wraps(function)
    def run(**options: Any) -> None:
        try:
            with connection():
                result = function(**options)
        except ServiceError as error:
            if error.__cause__:
                click.echo(f"database unavailable: {error.__cause__}", err=True)
            raise click.ClickException(error.code) from error
        click.echo(result if isinstance(result, str) else json.dumps(result))

    return run


@command
def init_db() -> dict[str, Any]:
    """Make the missing tables and indexes; fail when a table lacks a column."""
    create_tables()
    return {"object": "database", "engine": db.engine}


@command
@click.option("--administrator", is_flag=True, help="Make it an administrator.")
@APPID
def create_account(administrator: bool, appid: str | None) -> dict[str, Any]:
    """Make an account."""
    return accounts.create_account(operations.checked_appid(appid), administrator=administrator)


@command
@click.argument("email")
@APPID
def find_accounts(email: str, appid: str | None) -> dict[str, Any]:
    """Find the accounts that have a profile with this e-mail address."""
    found = accounts.find_accounts(email, operations.checked_appid(appid))
    return {"object": "accounts", "data": found}


@command
@ACCOUNTID
@click.option("--off", is_flag=True, help="Make it an ordinary account again.")
def set_administrator(accountid: str, off: bool) -> dict[str, Any]:
    """Make an account an administrator, or not."""
    return accounts.set_administrator(accountid, not off)


@command
@ACCOUNTID
@click.option("--duration", default=28_800, type=SECONDS, show_default=True, help="In seconds.")
def create_session(accountid: str, duration: int) -> dict[str, Any]:
    """Make a session of an account; its token is shown only now."""
    return accounts.create_session(accountid, duration)


@command
@click.argument("sessionid")
def end_session(sessionid: str) -> dict[str, Any]:
    """End a session at once."""
    return accounts.end_session(sessionid)


@command
@ACCOUNTID
def end_sessions(accountid: str) -> dict[str, Any]:
    """End all running sessions of an account at once."""
    return {"object": "end", "count": accounts.end_sessions(accountid)}


@command
@click.option("--days", default=30, type=DAYS, show_default=True, help="How long ago.")
def purge_sessions(days: int) -> dict[str, Any]:
    """Delete the sessions that ended or expired so many days ago, or more."""
    before = timestamp(time.time_ns() - days * 86_400 * 10**9)
    return {"object": "purge", "count": accounts.purge_sessions(before)}


@command
def demo() -> str:
    """Make a few accounts with profiles, and print a curl line for each operation."""
    settings = operations.settings()
    limits = settings.lengths, settings.maximum_post_data_length
    body, appid = example_body(settings.user_profile_fields, *limits), settings.appid
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

# update-profile, as a user
curl -X PATCH {user} {form} '{page}api/user/update-profile?profileid={profile["profileid"]}'

# create-profile, as the same user
curl -X POST {user} {form} -d default=true '{page}api/user/create-profile?accountid={accountid}'

# sessions, as the administrator
curl {admin} '{page}api/administrator/sessions'

# profiles, as the administrator
curl {admin} '{page}api/administrator/profiles?limit=2'
"""
