"""Copying all that the configured database holds into another one, which is empty."""

import sqlite3
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import orjson
import peewee
import pymysql

from database import open_database
from database_url import DatabaseURL
from engines import INDEX_SECONDS, Engine
from errors import SettingError
from failures import first_cause, is_outage, shown
from models import Account, AnyModel, Profile, Session
from rows import batches
from tables import db

MODELS: tuple[AnyModel, ...] = (Account, Profile, Session)


def copy_database(url: DatabaseURL, progress: Callable[[int], object]) -> dict[str, Any]:
    """Copy every row into the database of the URL, and compare the two; return the numbers of rows.

    What is copied is one moment of the configured database. ``progress`` is told how many rows were
    copied or compared since it was last called. Raises SettingError when the other database has
    rows, is away, or refuses a row: then nothing is stored there.
    """
    target = open_database(url, INDEX_SECONDS)
    try:
        with target.connection_context(), target.writing(several=True), db.atomic():
            if any(next(batches(model, source=target), None) for model in MODELS):
                raise SettingError("DATABASE_URL", f"{url.engine}://***", "has rows already")
            counts = {f"{m._meta.name}s": copy_table(m, target, progress) for m in MODELS}
    except (peewee.PeeweeException, pymysql.MySQLError, sqlite3.Error) as error:
        cause = first_cause(error)
        reason = shown(cause) if is_outage(cause) else f"{type(cause).__name__} {cause.args[0]}"
        raise SettingError("DATABASE_URL", f"{url.engine}://***", reason) from error
    return {"object": "copy", **counts}


def copy_table(model: AnyModel, target: Engine, progress: Callable[[int], object]) -> int:
    """Copy the rows of a table, and compare them; return how many there are."""
    fields, count, digests = model._meta.sorted_fields, 0, []
    insert, _ = target.get_sql_context().sql(model.insert(dict.fromkeys(fields, 0))).query()
    for source in (db, target):
        digest = sha256()
        for rows in batches(model, *fields[1:], source=source):
            if source is db:
                target.cursor().executemany(insert, rows)
                count += len(rows)
            digest.update(orjson.dumps(list(rows), default=repr))
            progress(len(rows))
        digests.append(digest.digest())
    if digests[0] != digests[1]:
        raise peewee.DataError(f"the copy of {model._meta.table_name} differs")
    return count
