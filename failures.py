"""What an error of a database means: an outage, a conflict that another try avoids, or a defect."""

import peewee

AWAY = ("OperationalError", "InterfaceError", "InternalError", "DatabaseError")  # an outage
NO_TABLE = (1046, 1146)  # MySQL's errors for a database or a table that does not exist
AFTERMATH = (  # of a connection that was lost before, or of a transaction that was rolled back
    *(0, 1305),
    *("Cannot operate on a closed database.", "cannot rollback - no transaction is active"),
)
ID_TAKEN = (".id", "PRIMARY'")  # how SQLite's and MySQL's messages end
CONFLICTS = {
    1020: "the row was changed since this transaction read it",
    1050: "another process has made this table",
    1061: "another process has made this index",
    1205: "the wait for a lock was too long",
    1213: "a deadlock, or a conflict between the nodes of a cluster",
    1684: "another process is changing this table",
    3101: "a conflict between the members of a group",
    "database is locked": "many processes open a new file of SQLite's",
}
COMMIT_CONFLICT = "Got error 149"  # of a group's member, in an error 1180, which has other reasons


def first_cause(error: BaseException) -> BaseException:
    """Return the error that came first: one that a lost connection causes hides it."""
    while error.args[:1] and error.args[0] in AFTERMATH and error.__context__:
        error = error.__context__
    return error


def shown(error: BaseException) -> str:
    """Return the text of an error, without the value that SQLite quotes when it is not UTF-8."""
    return str(error).partition(" with text ")[0]


def is_outage(error: BaseException) -> bool:
    """Return whether the database is away, full, read-only, locked or incomplete."""
    library, name = type(error).__module__.partition(".")[0], type(error).__name__
    known = name in AWAY or error.args[:1] and error.args[0] in (*NO_TABLE, *AFTERMATH)
    return library in ("peewee", "pymysql", "sqlite3") and bool(known)


def is_conflict(error: BaseException) -> bool:
    """Return whether the same work may succeed when it is repeated in a new transaction."""
    code, *text = first_cause(error).args or (None,)
    return code in CONFLICTS or (code == 1180 and COMMIT_CONFLICT in str(text))


def is_id_taken(error: BaseException) -> bool:
    """Return whether another process has made a row in the same nanosecond."""
    return isinstance(error, peewee.IntegrityError) and error.args[-1].endswith(ID_TAKEN)
