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
from models import Account, Session, identifier, insert, now, timestamp
from operations import application, create_profile, settings
from validators import BOUNDED_FIELDS, CATALOGUE, is_identifier

DAY_NANOSECONDS = 86_400 * 10**9
PURGE_BATCH = 1_000
"""Sessions looked at in one transaction, so that nobody waits long for a lock."""
LONGEST_DURATION = 2**31 - 1
"""Seconds: what the column holds."""

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
@click.option("--administrator", is_flag=True, help="May list profiles and sessions.")
@click.option("--appid", help="The application, instead of the service's own.")
def create_account_command(administrator: bool, appid: str | None) -> None:
    """Make an account."""
    with connected():
        show(create_account(application(appid), administrator=administrator))


@commands.cli.command("create-session")
@click.argument("accountid")
@click.option(
    "--duration",
    type=click.IntRange(1, LONGEST_DURATION),
    default=28_800,
    show_default=True,
    help="Seconds until it expires.",
)
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
@click.option(
    "--days",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    help="How long ago they ended or expired.",
)
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
    account = {
        "accountid": identifier("acct"),
        "appid": appid,
        "administrator": administrator,
        "profileid": None,
        "createdAt": made,
        "updatedAt": made,
    }
    with database.writing():
        Account.insert(account).execute()
    return {"accountid": account.pop("accountid"), "object": "account", **account}


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
        row = insert(
            Session,
            moment,
            {
                "sessionid": identifier("sess"),
                "appid": account.appid,
                "accountid": accountid,
                "tokenHash": token_hash(token),
                "duration": duration,
                "csrfToken": token_hex(32),
                "expiresAt": timestamp(moment + duration * 10**9),
                "lastVerifiedAt": timestamp(moment),
            },
        )
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
    row = database.execute(Session.select(*Session.listed()).where(found)).fetchone()
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
    administrator = create_account(settings().appid, administrator=True)
    people = [create_account(settings().appid) for _ in range(3)]
    made = [
        create_profile(Account(**person), person["accountid"], demo_fields(name))
        for person, name in zip(
            people, ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra"), strict=True
        )
    ]
    user = f"-H 'Authorization: Bearer {create_session(people[0]['accountid'], 28_800)['token']}'"
    token = create_session(administrator["accountid"], 28_800)["token"]
    base = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}/api"
    form = " ".join(f"--data-urlencode '{k}={v}'" for k, v in demo_fields("Ada King").items())
    update, create = f"profileid={made[0]['profileid']}", f"accountid={people[0]['accountid']}"
    return f"""\
Made an administrator and {len(people)} accounts with a profile each. With the service running
(flask run), paste any of these into another terminal:

curl -X PATCH {user} {form} '{base}/user/update-profile?{update}'

curl -X POST {user} {form} -d default=true '{base}/user/create-profile?{create}'

curl -H 'Authorization: Bearer {token}' '{base}/administrator/sessions'

curl -H 'Authorization: Bearer {token}' '{base}/administrator/profiles?limit=2'
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
