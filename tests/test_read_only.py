"""A token that can only read: every GET as with any other token, and no change."""

import re

import pytest
from service import assert_error, named, run, sign_in, stored

from accounts import create_administrator
from callers import OPERATOR
from sessions import create_session

READS = """
GET /api/user/account?accountid={own}
GET /api/user/profile?profileid={profile}
GET /api/user/profiles?accountid={own}&limit=1
GET /api/user/sessions?accountid={own}&all=1
GET /api/administrator/accounts?limit=1
GET /api/administrator/profiles?email=a@example.com
GET /api/administrator/sessions?accountid={other}&active=1
"""
CHANGES = """
POST /api/user/create-profile?accountid={own}
PATCH /api/user/update-profile?profileid={profile}
PATCH /api/user/set-default-profile?profileid={profile}
DELETE /api/user/delete-profile?profileid={profile}
PATCH /api/user/end-session
POST /api/administrator/create-account
POST /api/administrator/create-session?accountid={other}
PATCH /api/administrator/end-sessions?accountid={other}
DELETE /api/administrator/delete-account?accountid={other}
"""


@pytest.fixture
def app(make_app, empty_database_url):
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context():
        yield app


@pytest.fixture(params=["user", "administrator"])
def reader(app, request):
    """A client of an account with a profile, whose other token can only read."""
    client = sign_in(app, administrator=request.param == "administrator")
    client.create(named("b"))
    profile = client.create(named("a"))
    client.targets = {
        "own": client.accountid,
        "profile": profile.json["profileid"],
        "other": sign_in(app).accountid,
    }
    session = run(app, "create-session", client.accountid, "--read-only")
    client.read_only = bearer(session["token"])
    return client


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def requests(text, targets):
    """The method and the address of each request."""
    return re.findall(r"(\w+) (/.+)", text.format(**targets))


def test_every_request_is_tried(app):
    tried = re.findall(r"(\w+) (/[^?\n]+)", READS + CHANGES)
    assert sorted(tried) == sorted(
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule.startswith("/api/")
    )


def test_it_reads_what_another_token_of_the_account_reads(reader):
    for method, address in requests(READS, reader.targets):
        expected = reader.open(address, method=method)
        response = reader.open(address, method=method, headers=reader.read_only)
        assert (response.status, response.data) == (expected.status, expected.data)
        head = reader.head(address, headers=reader.read_only)
        assert head.status == expected.status
        assert head.headers.get("Link") == expected.headers.get("Link")


def test_it_changes_nothing(reader, empty_database_url):
    """Whoever's it is, and whatever the request asks for: it comes before the body."""
    before = stored(empty_database_url)
    for method, address in requests(CHANGES, reader.targets):
        for body in ({"json": named("c") | {"duration": 60}}, {"data": "x" * 65_537}):
            options = {"method": method, "headers": reader.read_only}
            response = reader.open(address, **body, **options)
            assert_error(response, 403, "read-only-token")
    assert stored(empty_database_url) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token.removeprefix("ro_"),
        lambda token: f"ro_{token}",
        str.upper,
        lambda token: token.replace("ro", "RO"),
        lambda token: token.replace("_", ""),
    ],
    ids=["without", "twice", "capitals", "RO_", "ro"],
)
def test_a_token_that_is_changed_is_unknown(reader, change):
    token = reader.read_only["Authorization"].removeprefix("Bearer ")
    for headers in (bearer(change(token)), bearer(f"ro_{reader.token}")):
        for method, address in requests(READS + CHANGES, reader.targets):
            response = reader.open(address, method=method, headers=headers)
            assert_error(response, 401, "sign-in-required")


def test_a_token_that_has_ended(app, reader):
    run(app, "end-sessions", reader.accountid)
    for method, address in requests(READS + CHANGES, reader.targets):
        response = reader.open(address, method=method, headers=reader.read_only)
        assert_error(response, 401, "sign-in-required", "ended")


def test_only_a_command_or_a_call_creates_one(app, flask, reader):
    """It is shown first, its hash is stored, and its session is like any other."""
    administrator = sign_in(app, administrator=True)
    commands = [
        flask("create-session", reader.accountid, "--read-only"),
        flask("create-administrator", "--read-only"),
    ]
    other = reader.targets["other"]
    call = create_session(administrator.caller, other, read_only=True)
    for session in [*commands, call, create_administrator(OPERATOR, read_only=True)]:
        assert [*session] == [*reader.session]
        assert re.fullmatch("ro_[0-9a-f]{64}", session["token"])
    body = {"read_only": True, "read-only": "true"}
    path = f"/api/administrator/create-session?accountid={other}&read_only=1"
    token = administrator.post(path, json=body).json["token"]
    assert re.fullmatch("[0-9a-f]{64}", token)
