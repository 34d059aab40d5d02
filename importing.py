"""The import of users from a CSV file."""

import csv
import re
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import chain
from typing import IO

import orjson
from flask import current_app
from peewee import chunked

from accounts import create_account
from callers import OPERATOR
from database import db, transaction
from errors import CommandError, ServiceError, as_line
from profiles import create_profile
from validators import configured_fields

# On SQLite, other writers wait for a transaction: for up to 0.7 seconds with this many
# users, and for up to 3 seconds with 500.
USERS_PER_TRANSACTION = 50
# Another date, such as 1/2/1950, could be read in two ways.
ISO_DATE_OR_NOTHING = "([0-9]{4}-[0-9]{2}-[0-9]{2})?"
User = dict[str, str]  # the values of a line by the names of the columns


def import_users(file: IO[bytes], appid: str | None) -> Iterator[tuple[int, str]]:
    """Import users from a CSV file in UTF-8; yield the line and the result of each.

    The result is ``imported``, ``unchanged`` if the user has an account, or why the
    user is refused. The import stops at a line that can't be parsed, because quotes may
    extend it to the end of the file, and at one that isn't UTF-8, because others won't
    be, either. Raises CommandError if columns are refused.
    """
    for batch in chunked(read_users(file), USERS_PER_TRANSACTION):
        yield from import_batch(batch, appid)


def read_users(file: IO[bytes]) -> Iterator[tuple[int, User | str]]:
    """Yield each line that begins a user, with the user or why the user is refused."""
    csv.field_size_limit(sys.maxsize)  # process-wide; by default 131,072 characters
    reader = csv.reader(read_lines(file), strict=True)
    ids: set[str] = set()
    line = 1
    try:
        columns = check_columns(next(reader, []))
        line = reader.line_num + 1
        for values in reader:
            if any(values):  # otherwise the line is empty
                yield line, to_user(values, columns, ids)
            line = reader.line_num + 1
    except csv.Error as error:
        yield line, f"stopped here: {error}"


def read_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file. Raises csv.Error at one that is not UTF-8.

    Raises CommandError if semicolons or tabs separate the columns.
    """
    # A byte that is not UTF-8 becomes a lone surrogate.
    text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    header = text.readline()
    if "," not in header and re.search("[;\t]", header):
        reason = "separated by semicolons or tabs instead of commas"
        raise CommandError(f"columns: {reason}")
    is_utf_16 = "\0" in header
    for line in chain([header], text):
        if is_utf_16 or re.search("[\ud800-\udfff]", line):
            raise csv.Error("not UTF-8; save the file as UTF-8")
        yield line


def to_user(values: list[str], columns: list[str], ids: set[str]) -> User | str:
    """Return the user of a line, or why the user is refused.

    ``ids``: those of the lines before it, to which its id is added.
    """
    if len(values) != len(columns):
        return "wrong number of columns"
    user = {}
    for position, (name, value) in enumerate(zip(columns, values, strict=True), 1):
        if name:
            user[name] = value
        elif value:
            return f"column {position} has no name"
    if user["id"] in ids:
        return "repeated id"
    ids.add(user["id"])
    return user


def check_columns(columns: list[str]) -> list[str]:
    """Return the names of the columns. Raises CommandError.

    Columns at the end may have no name, as in a spreadsheet: to_user() leaves them out.
    """
    required = ("id", *current_app.config["USER_PROFILE_FIELDS"])
    known = ("id", *configured_fields())
    reasons = [f"{name} is missing" for name in required if name not in columns]
    for position, name in enumerate(columns, 1):
        if name and name not in known:
            reasons.append(f"{as_line(name)} is unknown")
        elif not name and any(columns[position:]):
            reasons.append(f"column {position} has no name")
    reasons += [f"{name} is repeated" for name in known if columns.count(name) > 1]
    if reasons:
        raise CommandError(f"columns: {', '.join(reasons)}")
    return columns


@transaction
def import_batch(
    batch: list[tuple[int, User | str]], appid: str | None
) -> list[tuple[int, str]]:
    """Import users; return the line and the result of each."""
    return [
        (line, user if isinstance(user, str) else import_user(user, appid))
        for line, user in batch
    ]


def import_user(user: User, appid: str | None) -> str:
    """Import a user; return ``imported``, ``unchanged``, or why the user is refused."""
    body = user | {"default": "true"}
    key = body.pop("id")
    try:
        with db.atomic():
            account = create_account(OPERATOR, appid=appid, idempotency_key=key)
            if not account.is_new:
                return "unchanged"
            if len(orjson.dumps(body)) > current_app.config["MAXIMUM_POST_DATA_LENGTH"]:
                raise ServiceError("body-too-large")  # as over HTTP
            if not re.fullmatch(ISO_DATE_OR_NOTHING, user.get("dob", "")):
                body["dob"] = "-"  # is refused below, with all other wrong fields
            create_profile(
                OPERATOR,
                account["accountid"],
                body,
                appid=appid,
                idempotency_key="first",
            )
    except ServiceError as error:
        if error.code == "invalid-idempotency-key":
            return "invalid-id"
        return ", ".join(error.errors.values()) or error.code
    return "imported"
