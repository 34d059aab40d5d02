"""The import of users from a CSV file."""

import csv
import re
from collections.abc import Iterator
from io import TextIOWrapper
from typing import IO

from flask import current_app
from peewee import chunked

from accounts import create_account
from callers import OPERATOR
from database import db, transaction
from errors import ServiceError, as_line
from profiles import create_profile
from validators import configured_fields

USERS_PER_TRANSACTION = 500
# Another date, such as 1/2/1950, could be read in two ways.
ISO_DATE_OR_NOTHING = "([0-9]{4}-[0-9]{2}-[0-9]{2})?"
User = dict[str, str]  # the values of a line by the names of the columns


class ColumnsError(Exception):
    """The columns of a file are not those that an import needs."""


def import_users(file: IO[bytes], appid: str | None) -> Iterator[tuple[int, str]]:
    """Import users from a CSV file in UTF-8; yield the line and the result of each.

    The result is ``imported``, ``unchanged`` if the user has an account, or why the
    user is refused. The import stops at a line that can't be parsed, because quotes may
    extend it to the end of the file. Raises ColumnsError.
    """
    for batch in chunked(read_users(file), USERS_PER_TRANSACTION):
        yield from import_batch(batch, appid)


def read_users(file: IO[bytes]) -> Iterator[tuple[int, User | str]]:
    """Yield each line that begins a user, with the user or why the user is refused."""
    # A byte that is not UTF-8 becomes a lone surrogate: see is_utf8().
    text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, strict=True)
    columns: list[str] = []
    ids = set()
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield line, f"stopped here: {error}"
            return
        if not columns:
            columns = check_columns(values or [])
        elif values is None:
            return
        elif not is_utf8(values):
            yield line, "not UTF-8"
        elif len(values) == len(columns):
            user = dict(zip(columns, values, strict=True))
            is_repeated = user["id"] in ids
            ids.add(user["id"])
            yield line, "repeated id" if is_repeated else user
        elif values:  # otherwise an empty line
            yield line, "wrong number of columns"


def is_utf8(values: list[str]) -> bool:
    """Return whether values were read from UTF-8."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_columns(columns: list[str]) -> list[str]:
    """Return the names of the columns. Raises ColumnsError."""
    required = ("id", *current_app.config["USER_PROFILE_FIELDS"])
    known = ("id", *configured_fields())
    reasons = [f"{name} is missing" for name in required if name not in columns]
    reasons += [f"{as_line(name)} is unknown" for name in columns if name not in known]
    reasons += [f"{name} is repeated" for name in known if columns.count(name) > 1]
    if reasons:
        raise ColumnsError(f"columns: {', '.join(reasons)}")
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
            if not re.fullmatch(ISO_DATE_OR_NOTHING, user.get("dob", "")):
                raise ServiceError("invalid-dob")
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
