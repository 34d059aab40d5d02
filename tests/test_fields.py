"""What becomes of the text of each field: it is stored, or refused with a code.

The dates have a module of their own.
"""

import time
from enum import Enum

import pytest
from serving import Person, assert_error

from errors import ServiceError
from operations import create_profile, update_profile
from validators import CATALOGUE


def fields_of(rule):
    return [name for name, row in CATALOGUE.items() if row.rule == rule]


LONG = "x" * 60_000
LONGEST_NAME = "x" * 50
EMOJI = "👩‍🚀 naïve 中文 \u200b\x00 '\"\\%;--"
STORED = {
    "text": [" ", " as sent  ", EMOJI, LONG],
    "name": [" ", " as sent  ", EMOJI, LONGEST_NAME, "👩" * 50],
    "email": ["Ada.King+1@Example.COM", "Zoë@bücher.example"],
    "date": ["Tue, 31 Jan 1950 10:00:00 GMT"],
}
REFUSED = {
    "email": ["a.b", "@b.c", "@a@b.c"],
    "date": ["1950-02-29"],
}
NO_ADDRESSES = """\
a@
a@b
a@b@c d
a b@example.com
a@example..com
a@-example.com
a@@example.com
Ada <a@example.com>
a@localhost
a@[127.0.0.1]
"a b"@example.com
.a@b.com
""".splitlines()
NO_ADDRESSES += [
    "x" * 65 + "@example.com",
    "a@" + "x" * 64 + ".com",
    "a@example.com\n",
    "a@example.com ",
]
each_field = pytest.mark.parametrize("field", CATALOGUE)


NO_TEXTS = [True, 0, 1.5, ["Ada"], {"a": "b"}]


def bodies(field, texts):
    """Each text in a form, where None is left out, and in JSON, where it is null."""
    for text in texts:
        yield text, {"data": {field: text}}
        yield text, {"json": {field: text}}


def assert_refused(owner, profile, body, code):
    """Neither a create nor an update of the profile takes the body."""
    assert_error(owner.create(**body), 400, code)
    assert_error(owner.update(profile["profileid"], **body), 400, code)


@pytest.fixture
def owner(make_app, field):
    """Of the profiles of a service that has this field alone."""
    return Person(make_app(USER_PROFILE_FIELDS=field), administrator=True)


@pytest.fixture
def profile(owner, field):
    return owner.create({field: CATALOGUE[field].example}).json


@each_field
def test_texts_that_are_stored(owner, profile, field):
    property, rule, _ = CATALOGUE[field]
    profiles = []
    for text, body in bodies(field, STORED[rule]):
        stored = "1950-01-31" if rule == "date" else text
        created = owner.create(**body)
        updated = owner.update(profile["profileid"], **body)
        assert created.json[property] == updated.json[property] == stored
        profiles.insert(0, created.json)
    assert owner.profiles() == [*profiles, updated.json]


@each_field
def test_texts_that_are_refused(owner, profile, field):
    rule = CATALOGUE[field].rule
    texts = ["", None, *REFUSED.get(rule, [])]
    codes = dict.fromkeys(texts, f"invalid-{field}")
    if rule == "name":
        codes |= dict.fromkeys([LONGEST_NAME + "x", LONG], f"invalid-{field}-length")
    for text, body in bodies(field, codes):
        assert_refused(owner, profile, body, codes[text])
    for value in NO_TEXTS:
        assert_refused(owner, profile, {"json": {field: value}}, f"invalid-{field}")
    assert owner.profiles() == [profile]


@pytest.mark.parametrize("field", fields_of("email"))
def test_a_create_alone_wants_a_valid_address(owner, profile, field):
    property = CATALOGUE[field].property
    for text, body in bodies(field, NO_ADDRESSES):
        assert_error(owner.create(**body), 400, f"invalid-{field}")
        updated = owner.update(profile["profileid"], **body)
        assert updated.json[property] == text
    assert owner.profiles() == [updated.json]


LONGEST_DOMAIN = ".".join(["x" * 63, "x" * 63, "x" * 57, "com"])
LONGEST_ADDRESS = "x" * 64 + "@" + LONGEST_DOMAIN
ADDRESS_OF_MARKS = '"' + "\u0301" * 65_000 + '"@example.com'


@pytest.mark.parametrize("field", fields_of("email"))
def test_addresses_of_more_than_254_characters(make_app, field):
    """They are refused at once: to normalise one of 64 KB would take a second."""
    app = make_app(USER_PROFILE_FIELDS=field, MAXIMUM_POST_DATA_LENGTH=1_000_000)
    user = Person(app)
    assert len(LONGEST_ADDRESS) == 254
    assert user.create({field: LONGEST_ADDRESS}).status_code == 201
    began = time.monotonic()
    for text in ("x" + LONGEST_ADDRESS, ADDRESS_OF_MARKS):
        assert_error(user.create(json={field: text}), 400, f"invalid-{field}")
    assert time.monotonic() - began < 0.5


class Job(str, Enum):  # noqa: UP042 (str() of it is Job.PILOT)
    PILOT = "pilot"


def test_a_subclass_of_str_is_stored_as_its_text(user):
    account = user.account
    body = {"occupation": Job.PILOT}
    options = {"user_profile_fields": body}
    made = create_profile(account, account.accountid, body, **options)
    updated = update_profile(account, made["profileid"], body, **options)
    for profile in (made, updated):
        assert type(profile["occupation"]) is str
        assert profile["occupation"] == "pilot"


def test_what_a_call_in_python_can_do_wrong(user):
    def assert_raises(code, body, fields=None):
        options = {"user_profile_fields": fields}
        with pytest.raises(ServiceError, match=f"^{code}$"):
            create_profile(user.account, user.accountid, body, **options)

    for value in (b"1", "\ud800"):
        assert_raises("invalid-phone", {"phone": value}, ["phone"])
    for body in ([], "text"):
        assert_raises("invalid-body", body)
    assert_raises("invalid-contact-email", None)  # counts as an empty body
    assert_raises("invalid-nope", {"nope": "x"}, ["dob", "nope"])


@pytest.mark.parametrize("field", fields_of("name"))
def test_length_bounds_are_inclusive_and_count_characters(make_app, field):
    name = field.upper().replace("-", "_")
    lengths = {
        f"MINIMUM_PROFILE_{name}_LENGTH": 3,
        f"MAXIMUM_PROFILE_{name}_LENGTH": "4",
    }
    user = Person(make_app(USER_PROFILE_FIELDS=field, **lengths))
    for text in ("ééé", "👩" * 4):
        assert user.create({field: text}).status_code == 201
    for text in ("éé", "x" * 5):
        assert_error(user.create({field: text}), 400, f"invalid-{field}-length")


def test_the_first_that_fails_is_named_and_nothing_stored(make_app):
    """First in the order of the setting."""
    texts = {
        "website": "w",
        "full-name": "A",
        "dob": "2000-01-01",
        "contact-email": "a@example.com",
    }
    app = make_app(USER_PROFILE_FIELDS=",".join(texts))
    user = Person(app, administrator=True)
    made = user.create(texts).json
    body = dict.fromkeys(reversed(texts), "")
    for field in texts:
        assert_refused(user, made, {"data": body}, f"invalid-{field}")
        body[field] = CATALOGUE[field].example
    assert user.profiles() == [made]
