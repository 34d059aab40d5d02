"""What is sent and what comes back over HTTP, and creates that are repeated."""

import io
import re
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from databases import default_profiles
from serving import (
    CREATE,
    FORM,
    PROFILES,
    UPDATE,
    Person,
    assert_common_headers,
    assert_error,
    at_once,
    named,
)
from test_openapi import OPERATIONS

import models
from database import connection, transaction
from errors import ServiceError
from models import Profile
from operations import create_profile, list_profiles

GOOD = {"contact-email": "ada@example.com", "full-name": "Ada"}
JSON = "application/json"
MULTIPART = "multipart/form-data"
each_endpoint = pytest.mark.parametrize(
    ("method", "path"), [operation[:2] for operation in OPERATIONS[:-1]]
)


@pytest.fixture
def client(app):
    return app.test_client()


def as_header(text):
    """The text in UTF-8, as the test client sends it in a header."""
    return text.encode().decode("latin1")


def test_create_returns_the_whole_profile(user):
    response = user.create(GOOD)
    profile = response.json
    assert response.status_code == 201
    assert profile == dict.fromkeys(profile) | {
        "profileid": profile["profileid"],
        "object": "profile",
        "appid": user.appid,
        "accountid": user.accountid,
        "fullName": "Ada",
        "contactEmail": "ada@example.com",
        "createdAt": profile["createdAt"],
        "updatedAt": profile["createdAt"],
    }


def test_update_changes_the_configured_fields_alone(user):
    target = user.account, user.accountid
    fields = ["phone", "contact-email", "full-name"]
    body = {**GOOD, "phone": "1"}
    made = create_profile(*target, body, user_profile_fields=fields)
    ignored = {"phone": "2", "website": ["w"], "accountid": "acct_"}
    body = {**GOOD, "full-name": "Ada King", **ignored}
    response = user.update(made["profileid"], json=body)
    updated_at = response.json["updatedAt"]
    assert response.json == {**made, "fullName": "Ada King", "updatedAt": updated_at}
    assert updated_at >= made["updatedAt"]


def test_an_update_may_change_nothing(user, monkeypatch):
    """Not even updatedAt, within the same millisecond."""
    made = user.create(GOOD).json
    monkeypatch.setattr(models, "latest", 4 * 10**18)  # later than any clock here
    updated = user.update(made["profileid"], GOOD).json
    assert user.update(made["profileid"], GOOD).json == updated


def test_types_of_json(user):
    for content_type in ("application/json; charset=utf-8", "application/vnd.api+json"):
        made = user.create(json=GOOD, content_type=content_type)
        assert made.status_code == 201


def test_no_body_is_an_empty_form(user):
    for content_type in (None, FORM, MULTIPART, "text/plain", JSON):
        response = user.create(b"", content_type=content_type)
        assert_error(response, 400, "invalid-contact-email")


PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
GOOD_PARTS = PART % (b"contact-email", b"a@example.com") + PART % (b"full-name", b"Ada")
PARTS_IN_LATIN1 = GOOD_PARTS + PART % (b"phone", b"\xff")
LAST_LINE = b"--x--\r\n"
TYPE = f"{MULTIPART}; boundary=x"
INVALID_BODIES = {
    JSON: [
        b"{",
        b"[]",
        b"null",
        b'{"full-name": "\xff"}',
        b'{"full-name": NaN}',
        b'{"x": 1e999}',
        b'{"x": "\\ud800"}',
        b'{"a":' * 9_000 + b"}" * 9_000,
        b"[" * 60_000,
    ],
    FORM: [b"full-name=\xff"],
    TYPE: [GOOD_PARTS[:60], GOOD_PARTS[:-2], PARTS_IN_LATIN1 + LAST_LINE],
    MULTIPART: [GOOD_PARTS + LAST_LINE],
    f"{MULTIPART}; boundary=\xe9": [GOOD_PARTS + LAST_LINE],
}
UNSUPPORTED_BODIES = dict.fromkeys(["text/plain", "application/xml", None], [b"x"])
TOO_LONG = b"full-name=" + b"x" * 65_527
LONG_BODIES = dict.fromkeys([JSON, FORM, TYPE, "text/plain"], [TOO_LONG])


@pytest.mark.parametrize(
    ("status", "code", "bodies"),
    [
        (400, "invalid-body", INVALID_BODIES),
        (415, "unsupported-media-type", UNSUPPORTED_BODIES),
        (413, "body-too-large", LONG_BODIES),
    ],
)
def test_broken_bodies(user, administrator, status, code, bodies):
    """They are refused whatever the target is."""
    made = administrator.create(GOOD).json
    accountids = user.accountid, "x", administrator.accountid
    profileids = "", "x", made["profileid"]
    for content_type, texts in bodies.items():
        for text in texts:
            body = {"data": text, "content_type": content_type}
            for accountid in accountids:
                assert_error(user.create(accountid=accountid, **body), status, code)
            for profileid in profileids:
                assert_error(user.update(profileid, **body), status, code)
    assert administrator.profiles() == [made]


def test_a_body_shorter_than_it_says(user):
    text = io.BytesIO(b"contact-email=a@example.com&full-name=Ada")
    wire = {"wsgi.input": text, "wsgi.input_terminated": True, "CONTENT_LENGTH": "60"}
    cut_short = user.create(content_type=FORM, environ_overrides=wire)
    text.close()  # so that reading fails, as that of broken chunks does
    unreadable = user.create(content_type=FORM, environ_overrides=wire)
    assert_error(cut_short, 400, "invalid-body")
    assert_error(unreadable, 400, "invalid-body")


def test_a_body_of_exactly_the_limit_is_read_and_stored_whole(make_app):
    """Also one that is longer than a TEXT of MySQL."""
    app = make_app(USER_PROFILE_FIELDS="phone", MAXIMUM_POST_DATA_LENGTH=400_000)
    user = Person(app, administrator=True)
    phone = "👩" * 99_997 + "123456"
    body = f"phone={phone}".encode()
    user.create(body, content_type=FORM)
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    too_long = user.create(body + b"+", content_type=FORM, environ_overrides=chunked)
    assert_error(too_long, 413, "body-too-large")
    shorter = phone[100:]
    user.create({"phone": shorter}, content_type=MULTIPART)
    stored = [profile["phone"] for profile in user.profiles()]
    assert stored == [shorter, phone]


def test_a_file_is_ignored(user):
    file = (io.BytesIO(b"\xff" * 1_000), "phone.bin")
    body = {**GOOD, "phone": file}
    made = user.create(body, content_type=MULTIPART).json
    assert made["phone"] is None
    updated = user.update(made["profileid"], GOOD, content_type=MULTIPART)
    assert updated.status_code == 200


def test_as_many_parts_as_fit_are_read(user):
    text = PART % (b"a", b"") * 1_001 + GOOD_PARTS + LAST_LINE
    assert user.create(text, content_type=TYPE).status_code == 201


@each_endpoint
def test_sign_in_is_required_first(user, method, path):
    token = user.token
    wrong = [
        "Bearer",
        "Bearer é",
        f"Bearer {'0' * 64}",
        f"Bearer {token.upper()}",
        f"Bearer {token} x",
        f"Basic {token}",
        token,
    ]
    elsewhere = {"Authorization": f"Bearer {token}", "X-Appid": "elsewhere"}
    all_wrong = [{"Authorization": text} for text in wrong]
    for headers in ({}, elsewhere, *all_wrong):
        user.headers = headers
        response = user.send(method, f"{path}?limit=x", data=b"x" * 70_000)
        assert_error(response, 401, "sign-in-required")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    user.headers = {"Authorization": f"bEARER  {token}"}
    assert user.send(method, path).status_code != 401


def test_anothers_targets(user, administrator):
    """They are refused before the fields."""
    made = administrator.create(GOOD).json
    assert_error(user.update(made["profileid"], {}), 403, "invalid-account")
    assert_error(user.create({}, administrator.accountid), 403, "invalid-account")
    assert administrator.profiles() == [made]


def test_missing_targets(user):
    for query in ("", "?profileid=&accountid="):
        updated = user.send("PATCH", UPDATE + query, data=GOOD)
        assert_error(updated, 400, "invalid-profileid")
        created = user.send("POST", CREATE + query, data=GOOD)
        assert_error(created, 400, "invalid-accountid")


def test_unknown_targets(administrator):
    """Identifiers are compared byte for byte."""
    made = administrator.create(GOOD).json
    unknown = [
        "acct_0123456789abcdef",
        "prof_0123456789abcdef",
        "x",
        "é",
        "\x00",
        "' OR 1",
    ]
    for own in (made["profileid"], administrator.accountid):
        unknown += [own.upper(), f"{own} "]
    for text in map(quote, unknown):
        assert_error(administrator.update(text, GOOD), 404, "invalid-profileid")
        assert_error(administrator.create(GOOD, text), 404, "invalid-accountid")
        assert administrator.get(f"{PROFILES}?accountid={text}").json is None
        listing = administrator.get(f"{PROFILES}?after={text}")
        assert_error(listing, 400, "invalid-after")
    assert administrator.profiles() == [made]


def test_the_request_names_its_application(app):
    upper = Person(app, appid="Shop")
    lower = Person(app, appid="shop")
    made = upper.create(GOOD).json
    assert made["appid"] == "Shop"
    updated = lower.update(made["profileid"], GOOD)
    assert_error(updated, 404, "invalid-profileid")
    created = lower.create(GOOD, upper.accountid)
    assert_error(created, 404, "invalid-accountid")
    upper.headers["X-Appid"] = "shop"
    assert_error(upper.create(GOOD), 401, "sign-in-required")
    del upper.headers["X-Appid"]
    assert_error(upper.create(GOOD), 401, "sign-in-required")


def test_names_that_no_application_has(user):
    for appid in ("", "a b", "é", "a" * 65):
        user.headers["X-Appid"] = as_header(appid)
        assert_error(user.create(GOOD), 400, "invalid-appid")


def test_a_create_repeated_with_its_key_changes_nothing(user, administrator):
    key = "~ Key " + "x" * 249
    user.headers["Idempotency-Key"] = key
    first = user.create(json={**GOOD, "default": True}).json
    assert default_profiles()[user.accountid] == first["profileid"]
    digest = sha256(f"{user.appid} {user.accountid} {key}".encode()).hexdigest()
    assert first["profileid"] == f"prof_{digest[:16]}"  # in each process and version
    target = user.account, user.accountid
    other = create_profile(*target, {**GOOD, "default": True})
    changed = named("changed", default="true")
    assert create_profile(*target, changed, idempotency_key=key) == first
    for body in (GOOD, changed):
        again = user.create(body)
        assert again.status_code == 201
        assert again.json == first
    assert default_profiles()[user.accountid] == other["profileid"]
    updated = user.update(first["profileid"], named("updated")).json
    assert user.create(GOOD).json == updated
    user.headers["Idempotency-Key"] = key[:-1]
    administrator.headers["Idempotency-Key"] = key
    with_another_key = user.create(GOOD).json
    of_another = administrator.create(GOOD).json
    assert administrator.profiles() == [of_another, with_another_key, other, updated]


@pytest.mark.parametrize("default", ["", "true"])
def test_of_several_at_once_one_is_stored(user, administrator, default):
    user.headers["Idempotency-Key"] = "key"
    bodies = [named(name, default=default) for name in "abcdefgh"]
    responses = at_once(*[partial(user.create, body) for body in bodies])
    first, *others = [response.json for response in responses]
    assert others == [first] * 7
    assert administrator.profiles() == [first]
    expected = first["profileid"] if default else None
    assert default_profiles()[user.accountid] == expected


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_create_is_repeated_within_a_transaction(app, user, administrator, when):
    account = user.account

    def create(body):
        with app.app_context():
            return create_profile(
                account, account.accountid, body, idempotency_key="key"
            )

    first = create(named("first")) if when == "before" else None
    with transaction():
        assert list_profiles(administrator.account) == (first and [first])
        if when == "within":
            first = create(named("first"))
        again = create(named("again"))
        other = create_profile(account, account.accountid, GOOD)
    assert again == (first or again)
    assert administrator.profiles() == [other, again]


def test_keys_that_are_refused(user):
    for key in ("", "x" * 256, "é", "a\tb", "\x7f"):
        user.headers["Idempotency-Key"] = as_header(key)
        assert_error(user.create(GOOD), 400, "invalid-idempotency-key")
    target = user.account, user.accountid
    for key in ("a\n", b"x", 1, ["x"]):
        with pytest.raises(ServiceError, match="^invalid-idempotency-key$"):
            create_profile(*target, GOOD, idempotency_key=key)


def test_an_unknown_account_is_found_before_a_bad_key(app):
    nobody = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=False)
    with pytest.raises(ServiceError, match="^invalid-accountid$"):
        create_profile(nobody, nobody.accountid, GOOD, idempotency_key="")


def test_a_key_keeps_no_error_and_no_profile_of_another(user, administrator):
    user.headers["Idempotency-Key"] = "key"
    assert_error(user.create(), 400, "invalid-contact-email")
    made = user.create(GOOD).json
    taken = {"accountid": administrator.accountid}
    with connection():  # a collision that somebody made
        of_user = Profile.accountid == user.accountid
        Profile.update(**taken).where(of_user).execute()
    assert_error(user.create(GOOD), 400, "invalid-idempotency-key")
    assert administrator.profiles() == [made | taken]


UNKNOWN_PATHS = [
    "/nowhere",
    f"{PROFILES}/",
    "/api//administrator/profiles",
    "/docs//a.css",
]


def test_unknown_paths(client):
    environ = {"HTTP_HOST": "evil.example"}
    for path in UNKNOWN_PATHS:
        environ["PATH_INFO"] = path
        response = client.get(environ_overrides=environ)
        assert_error(response, 404, "not-found")
        assert "evil" not in str(response.headers)


@each_endpoint
def test_unknown_methods(client, method, path):
    response = client.put(path)
    assert_error(response, 405, "method-not-allowed")
    assert method in response.headers["Allow"]


def test_a_request_id_is_kept_and_any_other_replaced(client):
    for request_id, is_kept in (
        ("a", True),
        ("A-1_b.c", True),
        ("x" * 128, True),
        ("", False),
        ("x" * 129, False),
        ("a b", False),
        ("é", False),
        ('a"', False),
    ):
        headers = {"X-Request-Id": as_header(request_id)}
        for path in ("/health", "/nowhere", PROFILES):
            found = client.get(path, headers=headers).headers["X-Request-Id"]
            assert (found == request_id) is is_kept
            assert is_kept or re.fullmatch("[0-9a-f]{32}", found)


STATUSES = {
    "/health": 200,
    "/openapi.json": 200,
    "/docs/": 200,
    "/docs/swagger-ui.css": 200,
    "/": 302,
    "/docs": 302,
}


def test_each_response_has_the_headers_that_all_have(client):
    """Errors have them by assert_error."""
    for path, status in STATUSES.items():
        with client.get(path) as response:
            assert response.status_code == status
            assert_common_headers(response)


def test_a_file_that_has_not_changed(client):
    headers = {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    with client.get("/docs/swagger-ui.css", headers=headers) as response:
        assert response.status_code == 304
        assert_common_headers(response)


def test_what_flask_itself_refuses(client):
    websocket = {"Upgrade": "websocket", "Connection": "Upgrade"}
    for headers in (websocket, {"Host": "x" * 64}):
        response = client.get("/health", headers=headers)
        assert_error(response, 400, "bad-request")


def test_a_defect(app, client, caplog):
    app.add_url_rule("/defect", view_func=lambda: {}["the reason"])
    response = client.get("/defect")
    assert_error(response, 500, "internal-error")
    assert "KeyError: 'the reason'" in caplog.text


def test_health(client):
    health = client.get("/health").json
    assert health == {"object": "health", "status": "ok"}
