"""Import users from a CSV file: python docs/import_users.py users.csv

Its first line names the columns: "id", your own id for the user, and fields such as
full-name. Each user gets an account and a default profile, but no session. Correct the
lines that are refused, and run it again: users who have an account stay as they are.
"""

import csv
import re
import sys
from pathlib import Path

from peewee import chunked

sys.path.insert(0, str(Path(__file__).parent.parent))  # the modules of the service

from accounts import create_account  # noqa: E402
from app import create_app  # noqa: E402
from callers import OPERATOR  # noqa: E402
from database import db, transaction  # noqa: E402
from errors import ServiceError  # noqa: E402
from profiles import create_profile  # noqa: E402
from validators import configured_fields  # noqa: E402


def import_user(row: dict[str, str]) -> str:
    """Store a user's account and profile, or neither; return the result, or codes."""
    if None in row or None in row.values():
        return "wrong number of columns"
    if not re.fullmatch("([0-9]{4}-[0-9]{2}-[0-9]{2})?", row.get("dob", "")):
        return "invalid-dob"  # 1/2/1950 could be read in two ways
    body = row | {"default": "true"}
    try:
        with db.atomic():
            user = create_account(OPERATOR, idempotency_key=body.pop("id"))
            if not user.is_new:
                return "unchanged"
            create_profile(OPERATOR, user["accountid"], body, idempotency_key="first")
    except ServiceError as error:
        return ", ".join(error.errors.values()) or str(error)
    return "imported"


@transaction
def import_batch(batch: list[tuple[int, dict[str, str]]]) -> list[tuple[int, str]]:
    return [(line, import_user(row)) for line, row in batch]


with create_app().app_context(), open(sys.argv[1], encoding="utf-8-sig") as file:
    reader = csv.DictReader(file)
    columns, known = reader.fieldnames or [], ["id", *configured_fields()]
    if "id" not in columns or len({*known} & {*columns}) < len(columns):
        sys.exit(f"The columns must be id and fields, each once, out of {known}.")
    counts = {"imported": 0, "unchanged": 0, "refused": 0}
    for batch in chunked(((reader.line_num, row) for row in reader), 500):
        for line, result in import_batch(batch):
            if result not in counts:
                print(f"line {line}: {result}")
            counts[result if result in counts else "refused"] += 1
print(", ".join(f"{count} {result}" for result, count in counts.items()))
