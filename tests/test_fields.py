"""The fields of a profile: required, optional, wrong, and added by a row."""

import re

import pytest
from service import CREATE, UPDATE, sign_in

from errors import ServiceError
from operations import create_profile, update_profile
from validators import PROFILE_FIELDS


def described(app, *place):
    """What is at a place of the description."""
    found = app.test_client().get("/openapi.json").json
    for name in place:
        found = found[name]
    return found


@pytest.mark.parametrize(
    ("method", "path", "first", "last"),
    [
        ("post", CREATE, "invalid-accountid", ["invalid-idempotency-key"]),
        ("patch", UPDATE, "invalid-profileid", []),
    ],
    ids=["create", "update"],
)
def test_the_codes_of_a_400(make_app, method, path, first, last):
    app = make_app(USER_PROFILE_FIELDS="dob", OPTIONAL_PROFILE_FIELDS="full-name")
    response = described(app, "paths", path, method, "responses", "400")
    assert re.findall("`(.+?)`", response["description"]) == [
        *["invalid-appid", "invalid-body", first],
        *["invalid-dob", "invalid-full-name", "invalid-full-name-length"],
        *last,
        "bad-request",
    ]


@pytest.mark.parametrize("name", PROFILE_FIELDS)
def test_a_property_of_a_described_profile(app, name):
    row = PROFILE_FIELDS[name]
    profile = described(app, "components", "schemas", "Profile")
    schema = {"type": ["string", "null"], "examples": [row.example]}
    if row.rule == "date":
        schema["format"] = "date"
    assert profile["properties"][row.property] == schema


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
    ("body", "stored"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param({"data": {"phone": ""}}, None, id="empty"),
        pytest.param({"json": {"phone": ""}}, None, id="empty in JSON"),
        pytest.param({"json": {"phone": None}}, None, id="null in JSON"),
        pytest.param({"data": {"phone": " "}}, " ", id="a blank"),
        pytest.param({"data": {"phone": "112"}}, "112", id="a value"),
    ],
)
def test_an_optional_field_of_a_new_profile(ada, body, stored):
    ((kind, fields),) = body.items() if body else [("data", {})]
    created = ada.create(**{kind: NAME | fields})
    assert created.status_code == 201
    assert created.json["phone"] == stored
    assert ada.get(f"/api/user/profile?{profileid(created)}").json == created.json


def profileid(response):
    return f"profileid={response.json['profileid']}"


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        pytest.param({}, "112", id="absent"),
        pytest.param({"phone": ""}, None, id="empty"),
        pytest.param({"phone": None}, None, id="null"),
        pytest.param({"phone": "911"}, "911", id="a value"),
    ],
)
def test_an_optional_field_of_an_update(ada, fields, stored):
    created = ada.create(NAME | {"phone": "112"})
    updated = ada.update(created.json["profileid"], json=NAME | fields)
    assert updated.status_code == 200
    assert updated.json["phone"] == stored
    assert ada.get(f"/api/user/profile?{profileid(created)}").json == updated.json


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"dob": "31.1.1950"}, "invalid-dob"),
        ({"display-name": "x" * 51}, "invalid-display-name-length"),
        ({"phone": 112}, "invalid-phone"),
        ({"phone": []}, "invalid-phone"),
        ({"phone": False}, "invalid-phone"),
    ],
)
def test_an_optional_field_that_has_a_value_follows_its_rule(ada, fields, code):
    """In create and update, over HTTP and in-process."""
    ((name, _),) = fields.items()
    body = {"object": "error", "message": code, "errors": {name: code}}
    created = ada.create(NAME).json
    assert ada.create(json=NAME | fields).json == body
    assert ada.update(created["profileid"], json=NAME | fields).json == body
    with pytest.raises(ServiceError, match=f"^{code}$"):
        create_profile(ada.caller, ada.accountid, NAME | fields)
    with pytest.raises(ServiceError, match=f"^{code}$"):
        update_profile(ada.caller, created["profileid"], NAME | fields)


def test_a_field_that_neither_list_names_is_ignored(ada):
    assert ada.create(NAME | {"location": "London"}).json["location"] is None


def test_the_fields_of_one_call_replace_both_lists(ada):
    body = {"full-name": "", "phone": "112", "website": "example.com"}
    fields = ["website"]
    profile = create_profile(
        ada.caller, ada.accountid, body, user_profile_fields=fields
    )
    assert (profile["fullName"], profile["phone"]) == (None, None)
    with pytest.raises(ServiceError, match="^invalid-phone$"):
        update_profile(
            ada.caller, profile["profileid"], {}, user_profile_fields=["phone"]
        )


@pytest.mark.parametrize("kind", ["CreateProfile", "UpdateProfile"])
def test_an_optional_field_is_described_as_one(optional_app, kind):
    body = described(optional_app, "components", "schemas", kind)
    assert body["required"] == ["full-name"]
    assert body["properties"]["full-name"]["type"] == "string"
    assert body["properties"]["phone"] == {"type": ["string", "null"], "minLength": 1}


def test_the_example_of_a_body_has_the_optional_fields(optional_app, ada):
    content = described(optional_app, "paths", CREATE, "post", "requestBody", "content")
    example = content["application/json"]["example"]
    assert [*example] == ["full-name", "phone", "dob", "display-name", "default"]
    created = ada.create(json=example).json
    assert ada.update(created["profileid"], json=example).json["phone"]


# The codes of wrong fields

WRONG = {"dob": "x", "phone": "", "display-name": "x" * 51}


@pytest.fixture
def eve(make_app):
    """A user, for whom three fields are required and two are optional."""
    app = make_app(
        USER_PROFILE_FIELDS="phone,full-name,location",
        OPTIONAL_PROFILE_FIELDS="display-name,dob",
    )
    with app.app_context():
        yield sign_in(app)


def test_all_wrong_fields_in_the_order_in_which_they_are_checked(eve):
    """In create and update; ``message`` is the first."""
    right = {"phone": "112", "full-name": "Eve", "location": "London"}
    created = eve.create(right).json
    body = WRONG | {"location": "London"}
    for response in (eve.create(body), eve.update(created["profileid"], body)):
        assert response.status_code == 400
        assert response.json["message"] == "invalid-phone"
        assert [*response.json.items()] == [
            ("object", "error"),
            ("message", "invalid-phone"),
            ("errors", response.json["errors"]),
        ]
        assert [*response.json["errors"].items()] == [
            ("phone", "invalid-phone"),
            ("full-name", "invalid-full-name"),
            ("display-name", "invalid-display-name-length"),
            ("dob", "invalid-dob"),
        ]


def test_all_wrong_fields_in_process(eve):
    with pytest.raises(ServiceError, match="^invalid-phone$") as caught:
        create_profile(eve.caller, eve.accountid, {"full-name": "Eve"})
    assert caught.value.errors == {
        "phone": "invalid-phone",
        "location": "invalid-location",
    }


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"method": "POST", "path": CREATE}, "invalid-accountid"),
        ({"method": "POST", "path": CREATE, "json": []}, "invalid-body"),
        ({"method": "GET", "path": "/nowhere"}, "not-found"),
    ],
)
def test_no_other_error_has_errors(eve, request_, message):
    response = eve.open(**request_)
    assert response.json == {"object": "error", "message": message}


def test_a_wrong_duration_has_no_errors(eve):
    administrator = sign_in(eve.application, administrator=True)
    path = f"/api/administrator/create-session?accountid={eve.accountid}"
    response = administrator.post(path, data={"duration": "x"})
    assert response.json == {"object": "error", "message": "invalid-duration"}


@pytest.mark.parametrize(
    ("accountid", "body", "code"),
    [
        ("x", {}, "invalid-accountid"),
        (None, "text", "invalid-body"),
    ],
)
def test_no_other_error_in_process_has_errors(eve, accountid, body, code):
    with pytest.raises(ServiceError, match=f"^{code}$") as caught:
        create_profile(eve.caller, accountid or eve.accountid, body)
    assert caught.value.errors == {}
