"""The rules of the ten fields: a table of what is sent and what comes of it.

Each row is tried on both databases, for both operations, in-process and over HTTP.
"""

from types import SimpleNamespace

import pytest
from serving import PROFILES, Person, assert_error

from app import create_app
from errors import ServiceError
from operations import create_profile, update_profile
from validators import CATALOGUE

MISSING = object()
LONG = "x" * 60_000
EMOJI = "👩‍🚀 naïve 中文 \u200b\x00 '\"\\%;--"

TEXTS = [name for name, row in CATALOGUE.items() if row.rule == "text"]
NAMES = [name for name, row in CATALOGUE.items() if row.rule == "name"]
EMAILS = [name for name, row in CATALOGUE.items() if row.rule == "email"]

# field, value sent, value stored or code
BOTH = [
    *((field, MISSING, f"invalid-{field}") for field in CATALOGUE),
    *((field, "", f"invalid-{field}") for field in CATALOGUE),
    *((field, " ", " ") for field in (*TEXTS, *NAMES)),
    *((field, "  kept as sent ", "  kept as sent ") for field in (*TEXTS, *NAMES)),
    *((field, EMOJI, EMOJI) for field in (*TEXTS, *NAMES)),
    *((field, LONG, LONG) for field in TEXTS),
    *((field, "x" * 50, "x" * 50) for field in NAMES),
    *((field, "👩" * 50, "👩" * 50) for field in NAMES),
    *((field, "x" * 51, f"invalid-{field}-length") for field in NAMES),
    *((field, LONG, f"invalid-{field}-length") for field in NAMES),
    *((field, "Ada.King+1@Example.COM", "Ada.King+1@Example.COM") for field in EMAILS),
    *((field, "no-at.example.com", f"invalid-{field}") for field in EMAILS),
    *((field, "@example.com", f"invalid-{field}") for field in EMAILS),
    *((field, "@a@example.com", f"invalid-{field}") for field in EMAILS),
    ("dob", "1950-01-31", "1950-01-31"),
    ("dob", "19500131", "1950-01-31"),
    ("dob", "1950-W05-2", "1950-01-31"),
    ("dob", "1950-031", "1950-01-31"),
    ("dob", "2020-W53-5T10:00", "2021-01-01"),
    ("dob", "1950-01-31T23:59:59.999Z", "1950-01-31"),
    ("dob", "1950-01-31T00:30:00+14:00", "1950-01-31"),
    ("dob", "1950-01-31T24:00", "1950-01-31"),
    ("dob", "1950-01-31 10:30 PM", "1950-01-31"),
    ("dob", "31 January 1950", "1950-01-31"),
    ("dob", "31st of January, 1950", "1950-01-31"),
    ("dob", "Jan 31, 1950", "1950-01-31"),
    ("dob", "Tue, 31 Jan 1950 10:00:00 GMT", "1950-01-31"),
    ("dob", "1950/01/31", "1950-01-31"),
    ("dob", "01/31/1950", "1950-01-31"),
    ("dob", "1/2/1950", "1950-01-02"),
    ("dob", "2000-02-29", "2000-02-29"),
    ("dob", "0001-01-01", "0001-01-01"),
    ("dob", "9999-12-31", "9999-12-31"),
    *(
        ("dob", text, "invalid-dob")
        for text in (
            *("1950", "1950-01", "1950-W05", "195001", "January 1950", "31 January", "01-1950"),
            *("2024-W53-1", "2023W531", "2024-W54-1", "2024-W00-1"),
            *("1/2/20 2020", "1/2/50 10:30 +2050", "1/2/50 10:30:10.2050"),
            *("10/11/12", "Jan 31 50", "310150", "tuesday", "today", "now", "10:30", "31", " "),
            *("1950-02-29", "1950-13-01", "1950-00-10", "1950-01-32", "Feb 30 1950", "0000-01-01"),
            *("-1950-01-31", "+1950-01-31", "10000-01-01", "１９５０-01-31", "31 de enero de 1950"),
            *("9" * 29 + "h", "1e99999999 1950", "\x00", "1950\x0001-31", "Infinity", "nan 1 1950"),
            *("1950-01-31T25:00", "1950-01-31garbage", "9" * 30, "9" * 60_000, "1950-01-31 " * 9),
        )
    ),
]
UPDATE = [
    *((field, "a@", "a@") for field in EMAILS),
    *((field, "a@b@c d", "a@b@c d") for field in EMAILS),
]
CREATE = [
    *((field, "Zoë@bücher.example", "Zoë@bücher.example") for field in EMAILS),
    *(
        (field, address, f"invalid-{field}")
        for field in EMAILS
        for address in (
            *("a@", "a@b", "a b@example.com", "a@example..com", "a@-example.com", "a@@example.com"),
            *("Ada <a@example.com>", "a@localhost", "a@[127.0.0.1]", '"a b"@example.com'),
            *("x" * 65 + "@example.com", "a@" + "x" * 64 + ".com", "a@example.com\n", ".a@b.com"),
        )
    ),
]


def body_of(field, value):
    return {} if value is MISSING else {field: value}


def stored_of(field, outcome):
    return {CATALOGUE[field].property: outcome}


def is_code(outcome):
    return outcome.startswith("invalid-")


@pytest.fixture(scope="module")
def account(database_url):
    """An account, and the context that its calls in-process need."""
    app = create_app({"DATABASE_URL": database_url})
    with app.app_context():
        yield Person(app).account


@pytest.mark.parametrize(("field", "value", "outcome"), BOTH + CREATE)
def test_create_in_process(account, field, value, outcome):
    def call():
        body = body_of(field, value)
        return create_profile(account, account.accountid, body, user_profile_fields=[field])

    check_in_process(call, field, outcome)


@pytest.mark.parametrize(("field", "value", "outcome"), BOTH + UPDATE)
def test_update_in_process(account, field, value, outcome):
    made = create_profile(account, account.accountid, {}, user_profile_fields=[])

    def call():
        body = body_of(field, value)
        return update_profile(account, made["profileid"], body, user_profile_fields=[field])

    check_in_process(call, field, outcome)


def check_in_process(call, field, outcome):
    if is_code(outcome):
        with pytest.raises(ServiceError) as caught:
            call()
        assert str(caught.value) == outcome
    else:
        assert call()[CATALOGUE[field].property] == outcome


@pytest.mark.parametrize("field", CATALOGUE)
@pytest.mark.parametrize("kind", ["data", "json"])
def test_over_http(make_app, kind, field):
    """What the operations do in-process, the endpoints do; a listing reads back what is stored."""
    user = Person(make_app(USER_PROFILE_FIELDS=field), administrator=True)
    profile = None
    for row, value, outcome in BOTH + CREATE:
        if row == field:
            response = user.create(**{kind: body_of(field, value)})
            profile = check_over_http(user, response, 201, field, outcome, profile)
    for row, value, outcome in BOTH + UPDATE:
        if row == field:
            response = user.update(profile["profileid"], **{kind: body_of(field, value)})
            profile = check_over_http(user, response, 200, field, outcome, profile)


def check_over_http(user, response, status, field, outcome, before):
    """Returns the newest profile after the request: the one it made, or the one before it."""
    newest = (user.get(f"{PROFILES}?limit=1").json or [None])[0]
    if is_code(outcome):
        assert_error(response, 400, outcome)
        assert newest == before
    else:
        assert response.status_code == status, outcome
        assert response.json[CATALOGUE[field].property] == outcome
        assert newest == response.json
    return newest


@pytest.mark.parametrize("names", [["dob", "nope"], ("nope",)])
def test_an_unknown_field_in_the_list_of_a_call(account, names):
    with pytest.raises(ServiceError, match="^invalid-nope$"):
        create_profile(account, account.accountid, {"nope": "x"}, user_profile_fields=names)


@pytest.mark.parametrize("value", [b"1", SimpleNamespace(encode=lambda: b"1")])
def test_what_is_no_text(account, value):
    with pytest.raises(ServiceError, match="^invalid-phone$"):
        create_profile(account, account.accountid, {"phone": value}, user_profile_fields=["phone"])


def test_every_field_has_its_rows():
    assert {row[0] for row in BOTH} == set(CATALOGUE), "a field lacks rows in BOTH"


@pytest.mark.parametrize("body", [[], "text", 1])
def test_a_body_that_is_no_mapping(account, body):
    with pytest.raises(ServiceError, match="^invalid-body$"):
        create_profile(account, account.accountid, body)


def test_no_body_in_process_is_an_empty_one(account):
    with pytest.raises(ServiceError, match="^invalid-contact-email$"):
        create_profile(account, account.accountid, None)


@pytest.mark.parametrize("field", NAMES)
def test_length_bounds_are_inclusive_and_count_characters(make_app, field):
    name = field.upper().replace("-", "_")
    bounds = {f"MINIMUM_PROFILE_{name}_LENGTH": 3, f"MAXIMUM_PROFILE_{name}_LENGTH": "4"}
    user = Person(make_app(USER_PROFILE_FIELDS=field, **bounds))
    statuses = {text: user.create({field: text}).status_code for text in ("éé", "ééé", "👩" * 4)}
    assert statuses == {"éé": 400, "ééé": 201, "👩" * 4: 201}
    assert_error(user.create({field: "éé"}), 400, f"invalid-{field}-length")
    assert_error(user.create({field: "x" * 5}), 400, f"invalid-{field}-length")
    assert_error(user.create({field: ""}), 400, f"invalid-{field}")


def test_first_failure_in_configured_order(make_app):
    user = Person(make_app(USER_PROFILE_FIELDS="website,full-name,dob,contact-email"))
    body = {"contact-email": "a@example.com", "dob": "2000-01-01", "full-name": "A", "website": "w"}
    for field in ("website", "full-name", "dob", "contact-email"):
        assert_error(user.create({**body, field: ""}), 400, f"invalid-{field}")
    assert_error(user.create({"contact-email": "", "dob": ""}), 400, "invalid-website")
    assert_error(user.create({**body, "dob": "", "contact-email": ""}), 400, "invalid-dob")


@pytest.mark.parametrize("operation", ["create", "update"])
def test_nothing_is_stored_when_one_field_fails(make_app, operation):
    user = Person(make_app(), administrator=True)
    made = user.create({"contact-email": "a@example.com", "full-name": "A"}).json
    broken = {"contact-email": "b@example.com", "full-name": "x" * 51}
    response = (
        user.create(broken) if operation == "create" else user.update(made["profileid"], broken)
    )
    assert_error(response, 400, "invalid-full-name-length")
    assert user.get(PROFILES).json == [made]


@pytest.mark.parametrize("lone", ['"\\ud800"', '"a\\udfffb"'])
def test_a_lone_surrogate_is_refused(user, lone):
    text = f'{{"contact-email": "a@example.com", "full-name": {lone}}}'
    assert_error(user.create(text, content_type="application/json"), 400, "invalid-body")
    with pytest.raises(ServiceError, match="^invalid-full-name$"):
        body = {"contact-email": "a@example.com", "full-name": "\ud800"}
        create_profile(user.account, user.accountid, body)
