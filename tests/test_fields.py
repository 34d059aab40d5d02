"""The rules of the ten fields: a table of what is sent and what comes of it.

Each row is tried on both databases and for both operations, as a form and as JSON. The dates have
a module of their own.
"""

from enum import Enum, StrEnum
from types import SimpleNamespace

import pytest
from serving import PROFILES, Person, assert_error, named

from errors import ServiceError
from operations import create_profile, update_profile
from validators import CATALOGUE

LONG = "x" * 60_000
EMOJI = "👩‍🚀 naïve 中文 \u200b\x00 '\"\\%;--"

TEXTS = [name for name, row in CATALOGUE.items() if row.rule == "text"]
NAMES = [name for name, row in CATALOGUE.items() if row.rule == "name"]
EMAILS = [name for name, row in CATALOGUE.items() if row.rule == "email"]

# field, value sent (None: not in a form, null in JSON), value stored or code
BOTH = [
    *((field, text, f"invalid-{field}") for field in CATALOGUE for text in ("", None)),
    *(
        (field, text, text)
        for field in (*TEXTS, *NAMES)
        for text in (" ", " as sent  ", EMOJI)
    ),
    *((field, LONG, LONG) for field in TEXTS),
    *((field, text, text) for field in NAMES for text in ("x" * 50, "👩" * 50)),
    *(
        (field, text, f"invalid-{field}-length")
        for field in NAMES
        for text in ("x" * 51, LONG)
    ),
    *((field, text, text) for field in EMAILS for text in ("Ada.King+1@Example.COM",)),
    *(
        (field, text, f"invalid-{field}")
        for field in EMAILS
        for text in ("a.b", "@b.c", "@a@b.c")
    ),
    ("dob", "Tue, 31 Jan 1950 10:00:00 GMT", "1950-01-31"),
    ("dob", "1950-02-29", "invalid-dob"),
]
UPDATE = [(field, text, text) for field in EMAILS for text in ("a@", "a@b@c d")]
NO_ADDRESSES = [
    *(
        "a@",
        "a@b",
        "a b@example.com",
        "a@example..com",
        "a@-example.com",
        "a@@example.com",
    ),
    *(
        "Ada <a@example.com>",
        "a@localhost",
        "a@[127.0.0.1]",
        '"a b"@example.com',
        ".a@b.com",
    ),
    *(
        "x" * 65 + "@example.com",
        "a@" + "x" * 64 + ".com",
        "a@example.com\n",
        "a@example.com ",
    ),
]
CREATE = [
    *((field, "Zoë@bücher.example", "Zoë@bücher.example") for field in EMAILS),
    *((field, text, f"invalid-{field}") for field in EMAILS for text in NO_ADDRESSES),
]


@pytest.mark.parametrize("field", CATALOGUE)
def test_what_comes_of_each_text(make_app, field):
    """A listing reads back what is stored."""
    user, made = Person(make_app(USER_PROFILE_FIELDS=field), administrator=True), []

    def send(call, status, table):
        """The profiles that the rows of the table store, or the code of each that is refused."""
        for body, outcome in (
            ({f: v}, outcome) for f, v, outcome in table if f == field
        ):
            for kind in ("data", "json"):
                response = call(**{kind: body})
                if outcome.startswith("invalid-"):
                    assert_error(response, 400, outcome)
                else:
                    assert response.status_code == status, body
                    assert response.json[CATALOGUE[field].property] == outcome
                    made.append(response.json)

    send(user.create, 201, BOTH + CREATE)
    assert user.profiles() == made[::-1]
    stored, profileid = len(made), made[-1]["profileid"]
    send(lambda **body: user.update(profileid, **body), 200, BOTH + UPDATE)
    assert made[stored:]
    assert user.get(f"{PROFILES}?limit=1").json == made[-1:]


class Job(str, Enum):  # noqa: UP042 (str() of it is Job.PILOT)
    PILOT = "pilot"


class Work(StrEnum):
    PILOT = "pilot"


class Loud(str):
    def __str__(self):
        return self.upper()


def test_a_subclass_of_str_is_stored_as_its_text(user):
    account, fields = user.account, [*TEXTS, *NAMES]
    for text in (Job.PILOT, Work.PILOT, Loud("pilot")):
        body = dict.fromkeys(fields, text)
        made = create_profile(
            account, account.accountid, body, user_profile_fields=fields
        )
        changed = update_profile(
            account, made["profileid"], body, user_profile_fields=fields
        )
        for profile in (made, changed):
            stored = [profile[CATALOGUE[field].property] for field in fields]
            assert [(type(each), each) for each in stored] == [(str, "pilot")] * len(
                fields
            )


def test_what_is_no_text_no_body_and_no_field(user):
    target, phone = (user.account, user.accountid), {"user_profile_fields": ["phone"]}
    for value in (
        b"1",
        1,
        None,
        False,
        True,
        ["1"],
        "\ud800",
        SimpleNamespace(encode=str),
    ):
        with pytest.raises(ServiceError, match="^invalid-phone$"):
            create_profile(*target, {"phone": value}, **phone)
    for body in ([], "text", 1):
        with pytest.raises(ServiceError, match="^invalid-body$"):
            create_profile(*target, body)
    with pytest.raises(ServiceError, match="^invalid-contact-email$"):
        create_profile(*target, None)  # counts as an empty body
    for names in (["dob", "nope"], ("nope",)):
        with pytest.raises(ServiceError, match="^invalid-nope$"):
            create_profile(*target, {"nope": "x"}, user_profile_fields=names)


@pytest.mark.parametrize("field", NAMES)
def test_length_bounds_are_inclusive_and_count_characters(make_app, field):
    name = field.upper().replace("-", "_")
    bounds = {
        f"MINIMUM_PROFILE_{name}_LENGTH": 3,
        f"MAXIMUM_PROFILE_{name}_LENGTH": "4",
    }
    user = Person(make_app(USER_PROFILE_FIELDS=field, **bounds))
    for text in ("ééé", "👩" * 4):
        assert user.create({field: text}).status_code == 201
    for text in ("éé", "x" * 5, ""):
        code = f"invalid-{field}-length" if text else f"invalid-{field}"
        assert_error(user.create({field: text}), 400, code)


def test_first_failure_in_configured_order(make_app):
    names = ["website", "full-name", "dob", "contact-email"]
    user = Person(make_app(USER_PROFILE_FIELDS=",".join(names)))
    body = {
        "contact-email": "a@example.com",
        "dob": "2000-01-01",
        "full-name": "A",
        "website": "w",
    }
    for at, field in enumerate(names):
        wrong = body | dict.fromkeys(names[at:], "")
        assert_error(user.create(wrong), 400, f"invalid-{field}")


def test_nothing_is_stored_when_one_field_fails(user, administrator):
    made = user.create(named("a")).json
    broken = {"contact-email": "b@example.com", "full-name": "x" * 51}
    for response in (user.create(broken), user.update(made["profileid"], broken)):
        assert_error(response, 400, "invalid-full-name-length")
    assert administrator.profiles() == [made]
