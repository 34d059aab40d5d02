"""The Flask commands: each prints one JSON object on one line, the last of its output."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import click
from flask import Blueprint

from auth import token_hash
from database import connection, create_tables, database
from errors import ServiceError
from models import Account, Session, identifier, insert, listed, now, timestamp
from operations import application, create_profile, settings
from validators import BOUNDED_FIELDS, CATALOGUE, is_identifier

DAY_NANOSECONDS = 86_400 * 10**9
PURGE_BATCH = 1_000
"""Sessions looked at in one transaction, so that nobody waits long for a lock."""
DURATION = click.IntRange(1, 2**31 - 1)
"""Seconds, as many as the column holds."""

commands = Blueprint("commands", __name__, cli_group=None)


@contextmanager
def connected() -> Iterator[None]:
    """A connection for the command, whose failure is one line: the code."""
    try:
        with connection():
            yield
    except ServiceError as error:
        raise click.ClickException(error.code) from error


def show(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


@commands.cli.command("init-db")
def init_db_command() -> None:
    """Make the missing tables and indexes."""
    with connected():
        create_tables()
    show({"object": "database", "engine": settings().database.engine})


@commands.cli.command("create-account")
@click.option("--administrator", is_flag=True)
@click.option("--appid")
def create_account_command(administrator: bool, appid: str | None) -> None:
    """Make an account."""
    with connected():
        show(create_account(application(appid), administrator=administrator))


@commands.cli.command("create-session")
@click.argument("accountid")
@click.option("--duration", default=28_800, show_default=True, type=DURATION, metavar="SECONDS")
def create_session_command(accountid: str, duration: int) -> None:
    """Make a session of an account; its token is shown this once."""
    with connected():
        show(create_session(accountid, duration))


@commands.cli.command("end-session")
@click.argument("sessionid")
def end_session_command(sessionid: str) -> None:
    """End a session at once."""
    with connected():
        show(end_session(sessionid))


@commands.cli.command("purge-sessions")
@click.option("--days", default=30, show_default=True, type=click.IntRange(0, 36_500))
def purge_sessions_command(days: int) -> None:
    """Delete the sessions that ended or expired some days ago."""
    with connected():
        before = timestamp(time.time_ns() - days * DAY_NANOSECONDS)
        show({"object": "purge", "count": purge_sessions(before)})


@commands.cli.command("demo")
def demo_command() -> None:
    """Make a few accounts with profiles, and print a curl line for each operation."""
    with connected():
        click.echo(demo())


def create_account(appid: str, *, administrator: bool = False) -> dict[str, Any]:
    """Store a new account and answer it."""
    made = timestamp(now())
    key = {"accountid": identifier("acct")}
    account = {"appid": appid, "administrator": administrator, "profileid": None}
    account |= {"createdAt": made, "updatedAt": made}
    with database.writing():
        Account.insert({**key, **account}).execute()
    return {**key, "object": "account", **account}


def create_session(accountid: str, duration: int) -> dict[str, Any]:
    """Store a new session and answer it with its token, of which only the hash is kept.

    Raises ServiceError("invalid-accountid").
    """
    known = is_identifier("acct", accountid)
    account = Account.get_or_none(Account.accountid == accountid) if known else None
    if account is None:
        raise ServiceError("invalid-accountid", 404)
    token = token_hex(32)
    with database.writing():
        moment = now()
        session = {"sessionid": identifier("sess"), "appid": account.appid}
        session |= {"accountid": accountid, "tokenHash": token_hash(token)}
        session |= {"duration": duration, "csrfToken": token_hex(32)}
        session |= {"expiresAt": timestamp(moment + duration * 10**9)}
        row = insert(Session, moment, session | {"lastVerifiedAt": timestamp(moment)})
    return {**Session.as_objects([row])[0], "token": token}


def end_session(sessionid: str) -> dict[str, Any]:
    """End a session, if it has not ended yet, and answer it. Raises ServiceError."""
    found = Session.sessionid == sessionid
    if not is_identifier("sess", sessionid) or not Session.select().where(found).exists():
        raise ServiceError("invalid-sessionid", 404)
    moment = timestamp(now())
    with database.writing():
        Session.update(endedAt=moment, updatedAt=moment).where(
            found, Session.endedAt.is_null()
        ).execute()
    row = database.execute(Session.select(*listed(Session)).where(found)).fetchone()
    return Session.as_objects([row])[0]


def purge_sessions(before: str) -> int:
    """Delete the sessions ended or expired by then, walking the table once; answer how many."""
    over = (Session.expiresAt <= before) | (Session.endedAt <= before)
    deleted, last = 0, 0
    while True:
        further = Session.select(Session.id).where(Session.id > last).order_by(Session.id)
        rows = database.execute(further.limit(PURGE_BATCH)).fetchall()
        if not rows:
            return deleted
        walked = Session.id.between(last + 1, rows[-1][0])
        with database.writing():
            deleted += Session.delete().where(walked, over).execute()
        last = rows[-1][0]


def demo() -> str:
    """Make the demo's accounts and answer the lines that try the service with them."""
    for name in ("Grace Hopper", "Edsger Dijkstra", "Ada Lovelace"):
        accountid = create_account(settings().appid)["accountid"]
        caller = Account(accountid=accountid, administrator=False)
        profile = create_profile(caller, accountid, demo_fields(name))
    administrator = create_account(settings().appid, administrator=True)
    user, admin = (
        f"-H 'Authorization: Bearer {create_session(account, 28_800)['token']}'"
        for account in (accountid, administrator["accountid"])
    )
    page = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}/"
    form = " ".join(f"--data-urlencode '{k}={v}'" for k, v in demo_fields("Ada King").items())
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


def demo_fields(name: str) -> dict[str, str]:
    """A body that the configured fields accept."""
    email = f"{name.split()[0].lower()}@example.com"
    samples = {"name": name, "email": email, "date": "1815-12-10", "text": "London"}
    fields = {field: samples[CATALOGUE[field].rule] for field in settings().user_profile_fields}
    for field, (least, most) in zip(BOUNDED_FIELDS, settings().lengths, strict=True):
        if field in fields:
            fields[field] = name.ljust(least, ".")[:most]
    return fields
