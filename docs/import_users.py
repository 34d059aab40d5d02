"""Import users from a CSV file: python docs/import_users.py users.csv

Its columns are id, which is your own id for the user, and fields. Users get an account
and a default profile. After an error, run it again: who has an account is left alone.
"""

import csv
import re
import sys
from io import StringIO
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
    if None in row or None in row.values():
        return "wrong number of columns"
    if not re.fullmatch("([0-9]{4}-[0-9]{2}-[0-9]{2})?", row.get("dob", "")):
        return "invalid-dob"  # 1/2/1950 could be read in two ways
    body = row | {"default": "true"}
    try:
        with db.atomic():
            user = create_account(OPERATOR, idempotency_key=body.pop("id"))
            if user.is_new:
                owner = user["accountid"]
                create_profile(OPERATOR, owner, body, idempotency_key="first")
    except ServiceError as error:
        return ", ".join(error.errors.values()) or str(error)
    return "imported" if user.is_new else "unchanged"


@transaction
def import_batch(batch: list[tuple[int, dict[str, str]]]) -> list[tuple[int, str]]:
    return [(line, import_user(row)) for line, row in batch]


# A byte that is not UTF-8 becomes a lone surrogate, which the service refuses.
text = Path(sys.argv[1]).read_bytes().decode("utf-8-sig", "surrogateescape")
with create_app().app_context():
    reader = csv.DictReader(StringIO(text, newline=""))
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
