"""Errors of the database: which are outages, and what is logged about them."""

import sqlite3

import peewee
import pymysql

OUTAGES = (  # the database is unreachable, full, read-only, locked or damaged
    peewee.DatabaseError,
    peewee.InterfaceError,
    # Peewee does not translate an error while rows are fetched, nor of executemany().
    sqlite3.DatabaseError,
    pymysql.Error,
)
DEFECTS = ("IntegrityError", "DataError")  # DatabaseErrors, too, but of this program
# Errors whose text is logged, because it quotes at most names of columns, tables and
# indexes: one of them is missing, or another connection holds a lock.
SAFE_TEXTS = (1054, 1146, 1176, 1205, "SQLITE_ERROR", "SQLITE_BUSY")


def is_outage(error):
    """Return whether the database failed, rather than this program."""
    return isinstance(error, OUTAGES) and type(error).__name__ not in DEFECTS


def causes(error):
    """Yield a database error, and those before it: that of a rollback hides another."""
    while isinstance(error, OUTAGES):
        yield error
        error = error.__context__


def describe_error(error):
    """Return the class of a database error, and MySQL's number or SQLite's name of it.

    Then come those of the errors before it. Other texts than SAFE_TEXTS are left out,
    because they can quote what users have stored.
    """
    descriptions = []
    for cause in causes(error):
        if hasattr(cause, "orig"):
            continue  # Peewee raised it because of the driver's own, which follows
        number = cause.args[0] if len(cause.args) > 1 else "unknown"
        name = getattr(cause, "sqlite_errorname", number)
        text = f": {cause.args[-1]}" if name in SAFE_TEXTS else ""
        descriptions.append(f"{type(cause).__name__} {name}{text}")
    return ", ".join(dict.fromkeys(descriptions))


def log_error(logger, error):
    """Log an outage as one line, and any other error with its traceback."""
    if is_outage(error):
        logger.error("database unavailable: %s", describe_error(error))
    else:
        logger.error("internal error", exc_info=redact(error))


def redact(error):
    """Return a database error with its frames, but without its text.

    Raise it ``from None``, because the error that it replaces would be logged, too. Any
    other error is returned as it is.
    """
    if not isinstance(error, OUTAGES):
        return error
    return type(error)(describe_error(error)).with_traceback(error.__traceback__)
