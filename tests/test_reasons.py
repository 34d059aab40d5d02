"""What is logged of an error of the database, which may quote what users stored."""

import sqlite3

import peewee
import pymysql
import pytest

from outages import describe_error, is_outage

VALUE = "ada@example.com"


@pytest.mark.parametrize(
    "error, shown",
    [
        (
            peewee.OperationalError(1045, f"Access denied for user '{VALUE}'"),
            "OperationalError 1045",
        ),
        (
            peewee.DataError(1366, f"Incorrect integer value: '{VALUE}'"),
            "DataError 1366",
        ),
        (
            pymysql.IntegrityError(1062, f"Duplicate entry '{VALUE}' for key 'u'"),
            "IntegrityError 1062",
        ),
        (
            peewee.ProgrammingError(1146, "Table 'shop.profile' doesn't exist"),
            "ProgrammingError 1146: Table 'shop.profile' doesn't exist",
        ),
        (peewee.InterfaceError(0, ""), "InterfaceError 0"),
        (
            # As the driver says it while rows are fetched, without a name.
            sqlite3.OperationalError(f"Could not decode to UTF-8 with text '{VALUE}'"),
            "OperationalError unknown",
        ),
        (peewee.OperationalError(), "OperationalError unknown"),
    ],
    ids=str,
)
def test_the_class_and_the_number_are_shown(error, shown):
    """A text is shown only if it names no more than columns and tables."""
    assert describe_error(error) == shown
    assert is_outage(error) == ("DataError" not in shown and "Integrity" not in shown)


def test_errors_are_shown_once_in_the_order_in_which_they_happened():
    """The last one may be a rollback that failed because the connection was lost."""
    with pytest.raises(peewee.InterfaceError) as caught:
        try:
            raise peewee.OperationalError(2013, "Lost connection")
        except peewee.OperationalError as error:
            try:
                raise pymysql.OperationalError(*error.args)
            except pymysql.OperationalError:
                raise peewee.InterfaceError(0, "") from None
    assert describe_error(caught.value) == "OperationalError 2013, InterfaceError 0"
