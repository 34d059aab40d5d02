"""The Flask commands. All except ``demo`` print one JSON object on one line."""

import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

import click
from flask import Blueprint

import accounts
import profiles
import sessions
from callers import OPERATOR, resolve_appid
from config import parse_database_url
from copying import copy_database, count_rows
from database import SQLite, db
from errors import CommandError, ServiceError, SettingError
from formats import APPID, MAX_INT32, identifier_for_key
from importing import import_users
from models import Account, Resource, add_missing, check_tables, create_tables
from outages import DATABASE_ERRORS, describe_failure
from sessions import DEFAULT_DURATION, MAXIMUM_DURATION
from validators import example_body

PEOPLE = (
    {"full-name": "Alan Turing", "contact-email": "alan@example.com"},
    {"full-name": "Grace Hopper", "contact-email": "grace@example.com"},
    {"full-name": "Ada King", "contact-email": "ada@example.com"},
)

commands = Blueprint("commands", __name__, cli_group=None)
# The commands that create a SQLite database if there is none.
CREATORS = "create-account create-administrator demo import-users init-db".split()
# What a command prints after the code of an error.
EXPLANATIONS = {
    "invalid-account": "it is an administrator; first run set-administrator --off",
    "invalid-accountid": "the application has no such account",
    "invalid-appid": f"it must match {APPID}",
    "invalid-idempotency-key": "it must have 1 to 255 printable ASCII characters, no "
    "space at either end, and an accountid that no other key has",
    "invalid-sessionid": "the application has no such session",
}


class Command(click.Command):
    """A command that prints what its function returns, and an error as one line."""

    def invoke(self, ctx: click.Context) -> None:
        try:
            connect(creates_database=self.name in CREATORS)
            result = super().invoke(ctx)
        except ServiceError as error:
            message = f"{error.code}: {EXPLANATIONS.get(error.code, 'refused')}"
            raise CommandError(message) from None
        except DATABASE_ERRORS as error:
            raise CommandError(describe_failure(error)) from None
        if result:
            print_object(result)


def print_object(resource: Resource) -> None:
    """Print an object as JSON, in UTF-8 whatever the locale is."""
    click.echo(json.dumps(resource, ensure_ascii=False).encode())


def connect(*, creates_database: bool) -> None:
    """Connect to the database. Report a missing file: the URL may be wrong."""
    is_missing = isinstance(db.obj, SQLite) and not os.path.exists(db.database)
    if is_missing and not creates_database:
        reason = "no such file; check DATABASE_URL, or run flask init-db"
        raise CommandError(f"{db.database}: {reason}")
    if not creates_database:
        db.obj.prepare = None  # which would create tables in the wrong database
    db.lift_limits()  # the first connection also creates the tables
    if is_missing:
        click.echo(f"Created a new database, {db.database}", err=True)


commands.cli.command_class = Command
command = commands.cli.command
accountid_argument = click.argument("accountid")


def duration_option(default: int) -> Callable[..., Any]:
    """Return the option for the seconds that a session lasts."""
    return click.option(
        "--duration",
        type=click.IntRange(1, MAX_INT32),
        default=default,
        show_default=True,
        help="How long the session lasts, in seconds.",
    )


appid_option = click.option(
    "--appid", help="The application id, by default the service's own."
)
read_only_option = click.option(
    "--read-only", is_flag=True, help="Let the token send only GET and HEAD requests."
)
key_option = click.option(
    "--key",
    metavar="USER_ID",
    help="Your product's id for the user, which it sends as the Idempotency-Key.",
)


@command()
@appid_option
@click.option("--administrator", is_flag=True, help="Make it an administrator.")
@key_option
def create_account_command(
    appid: str | None, administrator: bool, key: str | None
) -> Resource:
    """Create an account and print it.

    With --key, it is the account that create-account returns to your product for this
    user. If it already exists, it is printed as it is.

    Example: flask create-account --key 0f8fad5b-d9cb-469f-a165-70867728950e
    """
    if administrator and key is not None:
        raise click.UsageError("--key creates an ordinary account")
    account = accounts.create_account(
        OPERATOR, appid=appid, idempotency_key=key, administrator=administrator
    )
    del account["profile"]  # show-account prints profiles
    return account


@command()
@click.argument("accountid", required=False)
@key_option
@appid_option
def show_account_command(
    accountid: str | None, key: str | None, appid: str | None
) -> Resource:
    """Print an account, its profiles and its sessions.

    Give either the ACCOUNTID or, as --key, your product's id for the user. Profiles and
    sessions are printed newest first, and all of them are read into memory.

    Example: flask show-account --key 0f8fad5b-d9cb-469f-a165-70867728950e
    """
    if (accountid is None) == (key is None):
        raise click.UsageError("give either ACCOUNTID or --key")
    if key is not None:
        accountid = identifier_for_key(Account.PREFIX, key, resolve_appid(appid))
    account = accounts.show_account(OPERATOR, accountid, appid=appid)
    if key is not None and not accounts.has_key(account, key):
        raise ServiceError("invalid-accountid")
    return account


@command()
@accountid_argument
@appid_option
@duration_option(DEFAULT_DURATION)
@read_only_option
def create_session_command(
    accountid: str, appid: str | None, duration: int, read_only: bool
) -> Resource:
    """Create a session and print it with its token.

    Store the token, because it won't be shown again. Whoever has it can act for the
    account until the session ends or expires.

    Example: flask create-session acct_9b1d4e6f8a2c7035 --duration 3600
    """
    return sessions.create_session(
        OPERATOR, accountid, appid=appid, duration=duration, read_only=read_only
    )


@command()
@appid_option
@duration_option(MAXIMUM_DURATION)
@read_only_option
def create_administrator_command(
    appid: str | None, duration: int, read_only: bool
) -> Resource:
    """Create an administrator and print its first token.

    This prints a session, which contains the token. Store the token, because it won't
    be shown again. If you repeat the command, it creates another administrator.
    """
    return accounts.create_administrator(
        OPERATOR, appid=appid, duration=duration, read_only=read_only
    )


@command()
@appid_option
def list_administrators_command(appid: str | None) -> Resource:
    """Print the accounts that are administrators."""
    return accounts.list_administrators(OPERATOR, appid=appid)


@command()
@click.argument("email")
@appid_option
def find_accounts_command(email: str, appid: str | None) -> Resource:
    """Find accounts by e-mail address.

    Prints each account with those of its profiles that have the address; the profiles
    are newest first. The case of ASCII letters is ignored. Other applications are not
    searched.

    Example: flask find-accounts ada@example.com
    """
    return accounts.find_accounts(OPERATOR, email, appid=appid)


@command()
@accountid_argument
@appid_option
@click.option("--off", is_flag=True, help="Make it an ordinary account again.")
def set_administrator_command(accountid: str, appid: str | None, off: bool) -> Resource:
    """Make an account an administrator and print it.

    This ends its sessions, so create a new one afterwards with flask create-session.

    Example: flask set-administrator acct_9b1d4e6f8a2c7035
    """
    return accounts.set_administrator(OPERATOR, accountid, appid=appid, off=off)


@command()
@click.argument("sessionid")
@appid_option
def end_session_command(sessionid: str, appid: str | None) -> Resource:
    """End a session and print it.

    Its token is refused from then on. Ending it again changes nothing.

    Example: flask end-session sess_5c8e1f7a2b904d36
    """
    return sessions.end_session(OPERATOR, sessionid, appid=appid)


@command()
@click.argument("accountid", required=False)
@click.option(
    "--all", "all_accounts", is_flag=True, help="End those of all ordinary accounts."
)
@appid_option
def end_sessions_command(
    accountid: str | None, all_accounts: bool, appid: str | None
) -> Resource:
    """End all sessions of an account, or of all users.

    Give either the ACCOUNTID or --all, which leaves out administrators. Prints how many
    were running. This signs a user or all users out everywhere, or revokes all tokens
    of an administrator.

    Example: flask end-sessions acct_9b1d4e6f8a2c7035
    """
    if all_accounts == (accountid is not None):
        raise click.UsageError("give either ACCOUNTID or --all")
    if all_accounts:
        return sessions.end_all_sessions(OPERATOR, appid=appid)
    return sessions.end_sessions(OPERATOR, accountid, appid=appid)


@command()
@accountid_argument
@appid_option
def delete_account_command(accountid: str, appid: str | None) -> Resource:
    """Delete an account, its profiles and its sessions.

    Prints how many profiles and sessions there were. To delete an administrator, first
    run flask set-administrator ACCOUNTID --off.

    Example: flask delete-account acct_9b1d4e6f8a2c7035
    """
    return accounts.delete_account(OPERATOR, accountid, appid=appid)


@command()
@click.option(
    "--days",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    help="Keep the sessions that ended or expired in the last DAYS days.",
)
def purge_sessions_command(days: int) -> Resource:
    """Delete old sessions and print how many.

    A session is old if it ended or expired at least DAYS days ago. Run this daily.
    """
    return sessions.purge_sessions(OPERATOR, days)


@command()
def init_db_command() -> Resource:
    """Create missing tables, nullable columns and indexes.

    Prints the columns that it added, and fails if another column is missing. You can
    safely repeat it, even while the service runs.
    """
    create_tables(db)
    added = add_missing(db)
    check_tables()
    return {"object": "database", "added": added}


@command()
@click.argument("database_url", envvar="TARGET_DATABASE_URL")
def copy_database_command(database_url: str) -> Resource:
    """Copy the configured database into an empty one. If that fails, copy nothing.

    For a backup, the service can keep running, because the rows are copied as of one
    moment. To move to the other database, stop the service first. If there is no
    argument, the variable TARGET_DATABASE_URL names the target. Prefer it for a
    URL with a password: other users of the machine can see arguments.

    Example: flask copy-database mysql://user:password@host/name
    """
    try:
        url = parse_database_url(database_url)
    except SettingError as error:
        raise CommandError(f"the target {error.message}") from None
    counts = {"accounts": 0, "profiles": 0, "sessions": 0}
    bar = click.progressbar(
        length=count_rows(), file=sys.stderr, hidden=not sys.stderr.isatty()
    )
    with bar:
        for name, count in copy_database(url):
            counts[name] += count
            bar.update(count)
    return {"object": "copy", **counts}


@command()
@click.argument("file", type=click.File("rb"))
@appid_option
@click.pass_context
def import_users_command(
    ctx: click.Context, file: IO[bytes], appid: str | None
) -> None:
    """Import users from a CSV file.

    If FILE is "-", standard input is read. The first line names the columns: id, which
    is your product's id for the user, and configured fields. Each user gets an account
    and a default profile. A user who has an account is left unchanged, so you can
    safely repeat the import.

    Prints how many were imported, and a line on standard error for each user who is
    refused; the exit status is then 1. At a broken line the import stops; the users
    before it stay imported.

    Example: flask import-users users.csv
    """
    appid = resolve_appid(appid)
    counts = {"imported": 0, "unchanged": 0, "refused": 0}
    try:
        for line, result in import_users(file, appid):
            if result not in counts:
                click.echo(f"line {line}: {result}", err=True)
                result = "refused"
            counts[result] += 1
    except DATABASE_ERRORS:
        imported = f"At least {counts['imported']} users were imported"
        click.echo(f"{imported}; a repeat imports the others", err=True)
        raise
    print_object({"object": "import", **counts})
    if counts["refused"]:
        ctx.exit(1)


@command()
def demo_command() -> None:
    """Create a few accounts, and print lines to try them.

    The lines export variables, which the samples of README and API use, and call curl.
    They contain tokens, so don't use this in production.
    """
    for person in PEOPLE:  # the lines below are for the last one
        body = example_body(person)
        owner = accounts.create_account(OPERATOR)["accountid"]
        profile = profiles.create_profile(OPERATOR, owner, body | {"default": "true"})
    user_session = sessions.create_session(OPERATOR, owner)
    administrator_session = accounts.create_administrator(
        OPERATOR, duration=DEFAULT_DURATION
    )
    user = f"-H 'Authorization: Bearer {user_session['token']}'"
    admin = f"-H 'Authorization: Bearer {administrator_session['token']}'"
    url = f"http://127.0.0.1:{os.environ.get('FLASK_RUN_PORT', 5000)}"
    form = " ".join(f"--data-urlencode '{name}={body[name]}'" for name in body)
    click.echo(f"""\
Created an administrator, and three accounts with a profile each. Start the service with
flask run, and paste the lines below into another terminal. Or send requests from its
page in a browser: click Authorize, and paste the tokens of the administrator and the user.
{url}/

# variables for docs/client.py and docs/shop.py, and for the samples in README and API
export PROFILES_URL={url}
export PROFILES_TOKEN={administrator_session["token"]}
export URL=$PROFILES_URL ADMIN=$PROFILES_TOKEN ACCOUNTID={owner}
export TOKEN={user_session["token"]}

# as the user: update-profile with the same values, and create-profile
curl -X PATCH {user} {form} '{url}/api/user/update-profile?profileid={profile["profileid"]}'
curl -X POST {user} -H 'Idempotency-Key: first' {form} -d default=true '{url}/api/user/create-profile?accountid={owner}'

# as the administrator: sessions, profiles
curl {admin} '{url}/api/administrator/sessions'
curl {admin} '{url}/api/administrator/profiles?limit=2'

# as the user again: the profiles of this account
curl {user} '{url}/api/user/profiles?accountid={owner}'
""")  # noqa: E501 (a line of curl is pasted as one line)
