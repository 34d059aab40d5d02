"""Who makes a request: a bearer token in, the account of its session out."""

import re
import time
from hashlib import sha256
from typing import NamedTuple

from peewee import Query

from database import Statement, place
from errors import ServiceError
from models import Account, Session, timestamp

BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)


class SignedIn(NamedTuple):
    """An account of the application, as it was when the request began."""

    accountid: str
    administrator: bool
    appid: str


def token_hash(token: str) -> str:
    """What the database holds in place of a token."""
    return sha256(token.encode()).hexdigest()


def signed_in(authorization: str | None, appid: str) -> SignedIn:
    """The caller of a request with this Authorization header, within the application.

    Raises ServiceError("sign-in-required") without a session that is neither ended nor expired.
    """
    bearer = BEARER.fullmatch(authorization or "")
    if bearer:
        moment = timestamp(time.time_ns())
        row = select_caller(appid=appid, hash=token_hash(bearer[1]), moment=moment).fetchone()
        if row:
            return SignedIn(row[0], bool(row[1]), appid)
    raise ServiceError("sign-in-required")


@Statement
def select_caller() -> Query:
    return (
        Account.select(Account.accountid, Account.administrator)
        .join(Session, on=(Session.accountid == Account.accountid))
        .where(
            Session.appid == place("appid"),
            Session.tokenHash == place("hash"),
            Session.expiresAt > place("moment"),
            Session.endedAt.is_null(),
            Account.appid == Session.appid,
        )
    )
