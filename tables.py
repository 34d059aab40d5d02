"""The base of the tables, and the one place where they are made."""

from collections.abc import Iterable
from threading import Lock

import peewee
from peewee import Metadata

from engines import INDEX_SECONDS, Engine, MySQL

db = peewee.DatabaseProxy()  # the database of the process
making = Lock()  # of tables: Peewee describes a table once for all threads


class AsciiField(peewee.TextField):
    """Identifiers, hashes and timestamps: at most 64 ASCII characters, compared byte for byte."""

    field_type = "ASCII"


class Table(peewee.Model):
    class Meta:
        database = db


def make_tables(engine: Engine) -> None:
    """Make the tables and indexes that are missing; safe for many processes and nodes at once.

    Raises peewee.OperationalError for a table that lacks a column.
    """
    tables = [model._meta for model in Table.__subclasses__()]
    existing = {name for (name,) in engine.execute_sql(engine.names)}
    wanted = {"_".join((t.table_name, *columns)) for t in tables for columns, _ in t.indexes}
    if not wanted | {t.table_name for t in tables} <= existing:  # as Peewee names them
        if isinstance(engine, MySQL):
            make_in_mysql(engine, tables, existing)
        else:
            engine.pragma("journal_mode", "wal")
            with engine.writing(several=True):
                for t in tables:
                    peewee.SchemaManager(t.model, engine).create_all()
    for t in tables:
        found = engine.execute_sql(f"SELECT * FROM {t.table_name} LIMIT 0").description
        if missing := sorted(t.columns.keys() - {column[0] for column in found}):
            raise peewee.OperationalError(f"table {t.table_name} lacks {', '.join(missing)}")


def make_in_mysql(engine: MySQL, tables: Iterable[Metadata], existing: set[str]) -> None:
    """Make each table with its indexes in one statement, and the indexes that a table lacks.

    Two members of a MySQL group that make an index of a table at once both leave the group.
    """
    patient = MySQL(engine.url, INDEX_SECONDS)
    with making, patient.connection_context():
        for t in tables:
            t.table_settings, t.constraints = ["ENGINE=InnoDB", "ROW_FORMAT=DYNAMIC"], []
            for columns, unique in t.indexes:
                name, kind = "_".join((t.table_name, *columns)), "UNIQUE " * unique + "INDEX"
                t.constraints.append(peewee.SQL(f"{kind} {name} ({', '.join(columns)})"))
                if t.table_name in existing and name not in existing:
                    on = f"{t.table_name} ({', '.join(columns)})"
                    patient.execute_sql(f"CREATE {kind} {name} ON {on}")
            if t.table_name not in existing:
                peewee.SchemaManager(t.model, patient).create_table()
            t.table_settings = t.constraints = None  # SQLite does not know them
