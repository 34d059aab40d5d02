"""The fields of a profile: what follows from a row of PROFILE_FIELDS."""

import re

import pytest
from service import CREATE, UPDATE

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
    app = make_app(USER_PROFILE_FIELDS="dob,full-name")
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
    date = {"format": "date"} if row.rule == "date" else {}
    assert profile["properties"][row.property] == {"type": ["string", "null"], **date}
    assert profile["example"][row.property] == row.example
