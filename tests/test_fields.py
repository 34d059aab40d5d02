"""The fields of a profile: required, optional, wrong, and added by a row."""

import json
from functools import partial

import email_validator
import pytest
from service import CREATE, sign_in

from errors import ServiceError
from profiles import create_profile, update_profile

# Optional fields

NAME = {"full-name": "Ada"}


@pytest.fixture
def optional_app(make_app):
    """The service with a required field and three optional ones."""
    app = make_app(
        USER_PROFILE_FIELDS="full-name",
        OPTIONAL_PROFILE_FIELDS="phone,dob,display-name",
    )
    with app.app_context():
        yield app


@pytest.fixture
def ada(optional_app):
    """A user of ``optional_app``."""
    return sign_in(optional_app)


@pytest.mark.parametrize(
    "fields, created, updated",
    [
        ({}, None, "112"),
        ({"phone": ""}, None, None),
        ({"phone": None}, None, None),
        ({"phone": " "}, " ", " "),
        ({"phone": "911"}, "911", "911"),
    ],
    ids=["absent", "empty", "null", "a blank", "a value"],
)
def test_an_optional_field(ada, fields, created, updated):
    """Absent, it is null in a new profile and unchanged in an update."""
    assert ada.create(json=NAME | fields).json["phone"] == created
    profileid = ada.create(NAME | {"phone": "112"}).json["profileid"]
    profile = ada.update(profileid, json=NAME | fields).json
    assert profile["phone"] == updated
    assert ada.get(f"/api/user/profile?profileid={profileid}").json == profile


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"dob": "31.1.1950"}, "invalid-dob"),
        ({"display-name": "x" * 51}, "invalid-display-name-length"),
        ({"phone": 112}, "invalid-phone"),
    ],
)
def test_an_optional_field_that_has_a_value_follows_its_rule(ada, fields, code):
    """In create and update."""
    [name] = fields
    body = {"object": "error", "message": code, "errors": {name: code}}
    created = ada.create(NAME).json
    assert ada.create(json=NAME | fields).json == body
    assert ada.update(created["profileid"], json=NAME | fields).json == body


def test_the_fields_of_one_call_replace_both_lists(ada):
    body = {"full-name": "", "phone": "112", "website": "example.com"}
    fields = ["website"]
    profile = create_profile(
        ada.caller, ada.accountid, body, user_profile_fields=fields
    )
    assert (profile["fullName"], profile["phone"]) == (None, None)


# The codes of wrong fields

WRONG = {"display-name": "x" * 51, "dob": "x", "phone": 7}
ERRORS = {
    "full-name": "invalid-full-name",
    "phone": "invalid-phone",
    "dob": "invalid-dob",
    "display-name": "invalid-display-name-length",
}


def test_all_wrong_fields_in_the_order_in_which_they_are_checked(ada):
    """In create and update, over HTTP and in-process; ``message`` is the first."""
    created = ada.create(NAME).json
    body = {"object": "error", "message": "invalid-full-name", "errors": ERRORS}
    update = partial(ada.update, created["profileid"])
    for write in (ada.create, update):
        response = write(json=WRONG)
        assert response.status_code == 400
        assert response.text.strip() == json.dumps(body, separators=(",", ":"))
    with pytest.raises(ServiceError, match="^invalid-full-name$") as caught:
        create_profile(ada.caller, ada.accountid, WRONG)
    assert caught.value.errors == ERRORS


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"method": "POST", "path": CREATE}, "invalid-accountid"),
        ({"method": "POST", "path": CREATE, "json": []}, "invalid-body"),
    ],
)
def test_no_other_error_has_errors(ada, request_, message):
    response = ada.open(**request_)
    assert response.json == {"object": "error", "message": message}


@pytest.mark.parametrize("body", ["text", b"full-name=Ada", [NAME], 7, True])
def test_no_other_error_in_process_has_errors(ada, body):
    """That of a body which is no mapping is invalid-body."""
    profileid = ada.create(NAME).json["profileid"]
    for write in (
        partial(create_profile, ada.caller, ada.accountid),
        partial(update_profile, ada.caller, profileid),
    ):
        with pytest.raises(ServiceError, match="^invalid-body$") as caught:
            write(body)
        assert caught.value.errors == {}


# Addresses

ADDRESSES = ["contact-email", "display-email"]


@pytest.fixture
def zoe(make_app):
    """A user of the service, whose fields are the two addresses."""
    return sign_in(make_app(USER_PROFILE_FIELDS=",".join(ADDRESSES)))


LONGEST = f"{'x' * 64}@{'x' * 63}.{'x' * 63}.{'x' * 57}.com"  # 254 characters
VALID = f"""
    a@corp.local a@shop.test Zoë+1@Bücher.EXAMPLE {LONGEST}
    zoë@münchen.de ﬁne@example.com ada@MÜNCHEN.straße.ΔΟ-Α.gr
    ada@XN--mnchen-3ya.de ada@ᏣᎳᎩ.com
"""
# Each stands for another address, up to the last line. U+212A is the Kelvin sign.
INVALID = f"""
    ada@example\u3002com ada@ｅxample.com ada@exam\ufe0fple.com ada@exa\u3164mple.com
    ada@examplE．com ada@ﬁne.com ada@℡.com ada@\u212aelvin.com ada@mu\u0308nchen.de
    ada@münchen.xn--p1ai ada@ᾳ.gr ada@ŉ.com ada@ſea.com
    \u212aing@example.com zoe\u0308@example.com
    Ada<ada@example.com> "ab"@example.com ada@[127.0.0.1] ada@127.0.0.1 {"x" * 65}@a.com
"""


@pytest.mark.parametrize("address", VALID.split())
def test_an_address_is_stored_as_it_is(zoe, address):
    """Its domain is in any script and any case, or in Punycode."""
    created = zoe.create(dict.fromkeys(ADDRESSES, address)).json
    assert created["contactEmail"] == created["displayEmail"] == address


@pytest.mark.parametrize("address", INVALID.split())
def test_an_address_that_is_refused(zoe, address):
    response = zoe.create(dict.fromkeys(ADDRESSES, address))
    assert response.json["errors"] == {name: f"invalid-{name}" for name in ADDRESSES}


def test_email_validator_is_left_as_it_is():
    with pytest.raises(ValueError, match="special-use"):
        email_validator.validate_email("x@printer.local", check_deliverability=False)
