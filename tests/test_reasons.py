"""Why the database failed, as the log and the commands show it.

The texts are those of MySQL 9.7, MariaDB 10.11, PyMySQL and SQLite, word for word. The
user is o'hara, and the value VALUE.
"""

import sqlite3

import peewee
import pytest

from database import describe_error

VALUE = """it's 'mine' \\ "yours" for column 'x' at row 1\n' for column 'x"""
SYNTAX = (
    "You have an error in your SQL syntax; check the manual that corresponds to your "
    "MySQL server version for the right syntax to use near '"
)
OUTAGES = [
    (1040, "Too many connections", "Too many connections"),
    (
        1044,
        "Access denied for user 'o'hara'@'%' to database 'shop'",
        "Access denied for user '***'@'***' to database 'shop'",
    ),
    (
        1045,
        "Access denied for user 'o'hara'@'10.0.0.1' (using password: YES)",
        "Access denied for user '***'@'***' (using password: YES)",
    ),
    (1049, "Unknown database 'shop'", "Unknown database 'shop'"),
    (
        1064,
        f"{SYNTAX}FRM '{VALUE}'' at line 1",
        f"{SYNTAX}***'",
    ),
    (
        1130,
        "Host '10.0.0.1' is not allowed to connect to this MariaDB server",
        "Host '***' is not allowed to connect to this MariaDB server",
    ),
    (
        1142,
        "INSERT command denied to user 'o'hara'@'10.0.0.1' for table `shop`.`profile`",
        "INSERT command denied to user '***'@'***' for table `shop`.`profile`",
    ),
    (
        1142,
        "ALTER command denied to user 'o'hara'@'10.0.0.1' for table 'profile'",
        "ALTER command denied to user '***'@'***' for table 'profile'",
    ),
    (
        1203,
        "User o'hara already has more than 'max_user_connections' active connections",
        "User *** already has more than 'max_user_connections' active connections",
    ),
    (
        1226,
        "User 'o'hara' has exceeded the 'max_user_connections' resource "
        "(current value: 10)",
        "User '***' has exceeded the 'max_user_connections' resource "
        "(current value: 10)",
    ),
    (
        1292,
        f"Incorrect date value: '{VALUE}' for column `shop`.`profile`.`dob` at row 1",
        "Incorrect date value: '***' for column `shop`.`profile`.`dob` at row 1",
    ),
    (
        1292,
        f"Incorrect date value: '{VALUE}' for column 'dob' at row 1",
        "Incorrect date value: '***' for column 'dob' at row 1",
    ),
    (
        1292,
        f"Truncated incorrect DOUBLE value: '{VALUE}'",
        "Truncated incorrect DOUBLE value: '***'",
    ),
    (
        1449,
        "The user specified as a definer ('o'hara'@'10.0.0.1') does not exist",
        "The user specified as a definer ('***'@'***') does not exist",
    ),
    (
        2003,
        "Can't connect to MySQL server on 'db.shop' ([Errno 111] Connection refused)",
        "Can't connect to MySQL server on 'db.shop' ([Errno 111] Connection refused)",
    ),
    (
        2013,
        "Lost connection to MySQL server during query (timed out)",
        "Lost connection to MySQL server during query (timed out)",
    ),
    (
        3159,
        "Connections using insecure transport are prohibited while "
        "--require_secure_transport=ON.",
        "Connections using insecure transport are prohibited while "
        "--require_secure_transport=ON.",
    ),
]


@pytest.mark.parametrize(
    ("number", "text", "shown"), OUTAGES, ids=[number for number, *_ in OUTAGES]
)
def test_an_outage_of_mysql_is_shown_without_users_hosts_and_values(
    number, text, shown
):
    """The number, the server, databases, tables and settings are shown."""
    reason = describe_error(peewee.OperationalError(number, text))
    assert reason == str((number, shown))
    for hidden in ("hara", "10.0.0.1", "mine", "yours"):
        assert hidden not in reason


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("database is locked", "database is locked"),
        ("database or disk is full", "database or disk is full"),
        ("no such column: t1.phone", "no such column: t1.phone"),
        (
            f"Could not decode to UTF-8 column 'fullName' with text '{VALUE}\ufffd'",
            "Could not decode to UTF-8 column 'fullName'",
        ),
    ],
)
@pytest.mark.parametrize(
    "exception_type", [peewee.OperationalError, sqlite3.OperationalError]
)
def test_an_outage_of_sqlite_is_shown_up_to_its_value(exception_type, text, shown):
    assert describe_error(exception_type(text)) == shown


@pytest.mark.parametrize(
    ("exception_type", "number", "text"),
    [
        (peewee.DataError, 1366, f"Incorrect integer value: '{VALUE}' for column 'n'"),
        (peewee.DataError, 1406, "Data too long for column 's' at row 1"),
        (peewee.IntegrityError, 1062, f"Duplicate entry '{VALUE}' for key 'u'"),
    ],
)
def test_a_defect_of_mysql_is_its_number(exception_type, number, text):
    assert describe_error(exception_type(number, text)) == str(number)


def test_a_defect_of_sqlite_is_the_name_of_its_code():
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (x UNIQUE)")
        connection.execute("INSERT INTO t VALUES (?)", [VALUE])
        with pytest.raises(sqlite3.IntegrityError) as caught:
            connection.execute("INSERT INTO t VALUES (?)", [VALUE])
    connection.close()
    error = peewee.IntegrityError(caught.value, *caught.value.args)
    assert describe_error(error) == "SQLITE_CONSTRAINT_UNIQUE"


def test_an_outage_without_a_text():
    assert describe_error(peewee.OperationalError()) == ""


def test_a_defect_without_a_number_is_unknown():
    assert describe_error(peewee.DataError(VALUE)) == "unknown"
