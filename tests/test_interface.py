"""The interface, sentence by sentence, in its order.

A test has the section and the rule in its name; its docstring says what the rule says.
Most tests send a request, and then make the same call in this process: in Python, where
the interface says NodeJS. ``assert_error(response, status, code)``: the body is
``{"object": "error", "message": code}``. Statuses, and the codes in "Authentication",
are this service's own. Events and Versioning are not shown: there is nothing to prove.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from service import assert_error, run, sign_in

from errors import ServiceError, SettingError
from profiles import create_profile, list_profiles, update_profile
from sessions import list_sessions

TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
# The fields, in the order of update's rules: the rule, the property, and a value.
FIELDS = {
    "full-name": (5, "fullName", "Ada K"),
    "display-name": (6, "displayName", "Ada B."),
    "company-name": (7, "companyName", "Engines"),
    "contact-email": (8, "contactEmail", "ada@example.com"),
    "display-email": (9, "displayEmail", "hello@example.com"),
    "dob": (10, "dob", "1950-01-31"),
    "phone": (11, "phone", "+44 20 7946 0958"),
    "occupation": (11, "occupation", "Mathematician"),
    "location": (11, "location", "London"),
    "website": (11, "website", "https://example.com"),
}
BODY = {field: value for field, (_, _, value) in FIELDS.items()}
CHANGED = {**BODY, "phone": "112"}
# The reverse order, so that it is neither that of the rules nor that of ``BODY``.
CONFIGURED = [*reversed(FIELDS)]
ENDPOINTS = [
    ("PATCH", "/api/user/update-profile"),
    ("POST", "/api/user/create-profile"),
    ("GET", "/api/administrator/sessions"),
    ("GET", "/api/administrator/profiles"),
]


@pytest.fixture
def app(make_app):
    """The service of ``user``, ``administrator`` and ``client`` in this file.

    A full name has 3 to 6 characters, a display name 4 to 7, a company name 5 to 8.
    """
    app = make_app(
        USER_PROFILE_FIELDS=",".join(CONFIGURED),
        MINIMUM_PROFILE_FULL_NAME_LENGTH="3",
        MAXIMUM_PROFILE_FULL_NAME_LENGTH="6",
        MINIMUM_PROFILE_DISPLAY_NAME_LENGTH="4",
        MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH="7",
        MINIMUM_PROFILE_COMPANY_NAME_LENGTH="5",
        MAXIMUM_PROFILE_COMPANY_NAME_LENGTH="8",
        PAGE_SIZE="2",
    )
    with app.app_context():
        yield app


@pytest.fixture
def profile(user):
    """A profile of the user."""
    return user.post(create_path(user), data=BODY).json


@pytest.fixture(params=["ordinary", "administrator"])
def another(app, request):
    """A client of another account: an ordinary one, or an administrator."""
    return sign_in(app, administrator=request.param == "administrator")


def raises(code):
    """An error in this process, whose message is the code."""
    return pytest.raises(ServiceError, match=f"^{code}$")


def create_path(client):
    """The path that creates a profile of the client's own account."""
    return f"/api/user/create-profile?accountid={client.accountid}"


def update_path(profile):
    return f"/api/user/update-profile?profileid={profile['profileid']}"


def account_of(client):
    """Every column of the client's account, as it is stored."""
    return client.caller.__data__


# What the service does


@pytest.fixture
def other(app, user):
    """An administrator of another application, which each of its requests names."""
    other = sign_in(app, administrator=True, appid=f"other-{user.appid}")
    assert other.headers["X-Appid"] == other.appid
    return other


def test_requests_are_scoped_to_one_application(user, administrator, profile, other):
    """The application is that of the instance, unless the request names another."""
    assert_error(user.post(create_path(other), data=BODY), 404, "invalid-accountid")
    created = other.post(create_path(other), data=BODY).json
    assert created["appid"] == other.appid
    response = user.patch(update_path(created), data=BODY)
    assert_error(response, 404, "invalid-profileid")
    updated = other.patch(update_path(created), data=CHANGED).json
    assert other.get("/api/administrator/profiles").json == [updated]
    assert administrator.get("/api/administrator/profiles").json == [profile]
    (session,) = other.get("/api/administrator/sessions").json
    assert session["appid"] == other.appid
    query = f"accountid={user.accountid}"
    assert other.get(f"/api/administrator/profiles?{query}").json is None
    assert other.get(f"/api/administrator/sessions?{query}").json is None
    elsewhere = {"X-Appid": other.appid}  # with the token of this application
    response = administrator.get("/api/administrator/profiles", headers=elsewhere)
    assert_error(response, 401, "sign-in-required")


def test_calls_are_scoped_to_one_application(administrator, profile, other):
    """In this process, ``appid`` names another application."""
    caller, appid = other.caller, other.appid
    with raises("invalid-accountid"):
        create_profile(caller, other.accountid, BODY)
    created = create_profile(caller, other.accountid, BODY, appid=appid)
    with raises("invalid-profileid"):
        update_profile(caller, created["profileid"], BODY)
    updated = update_profile(caller, created["profileid"], CHANGED, appid=appid)
    assert updated["phone"] == "112"
    assert updated["appid"] == appid
    assert list_profiles(caller, appid=appid) == [updated]
    assert list_profiles(administrator.caller) == [profile]
    (session,) = list_sessions(caller, appid=appid)
    assert session["appid"] == appid


def test_fields_count_in_the_body_alone(user, profile):
    """In the query, neither a field nor ``default`` counts."""
    account = account_of(user)
    query = {**CHANGED, "default": "true", "accountid": user.accountid}
    path = "/api/user/create-profile"
    assert_error(user.post(path, query_string=query), 400, "invalid-website")
    created = user.post(path, query_string=query, data=BODY).json
    assert created["phone"] == BODY["phone"]
    assert account_of(user) == account
    query = {**CHANGED, "profileid": profile["profileid"]}
    path = "/api/user/update-profile"
    assert_error(user.patch(path, query_string=query), 400, "invalid-website")
    updated = user.patch(path, query_string=query, data=BODY).json
    assert updated["phone"] == BODY["phone"]


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_is_simple_or_multipart(user, content_type):
    created = user.post(create_path(user), data=BODY, content_type=content_type).json
    path = update_path(created)
    updated = user.patch(path, data=CHANGED, content_type=content_type).json
    assert created["phone"] == BODY["phone"]
    assert updated["phone"] == "112"


# Resources and their fields


def test_profile_has_the_properties_of_the_table(user):
    """Each field is stored under its property. No property is a state."""
    response = user.post(create_path(user), data=BODY)
    profile = response.json
    assert response.status_code == 201
    assert profile == {
        "profileid": profile["profileid"],
        "object": "profile",
        "appid": user.appid,
        "accountid": user.accountid,
        **{property: value for _, property, value in FIELDS.values()},
        "fields": None,
        "createdAt": profile["createdAt"],
        "updatedAt": profile["updatedAt"],
    }
    assert re.fullmatch("prof_[0-9a-f]{16}", profile["profileid"])
    assert re.fullmatch("acct_[0-9a-f]{16}", profile["accountid"])
    assert re.fullmatch(TIMESTAMP, profile["createdAt"])
    assert re.fullmatch(TIMESTAMP, profile["updatedAt"])


def test_profile_properties_are_null_until_set(make_app, profile):
    """They are null, not left out. Create ignores fields that are not configured."""
    user = sign_in(make_app(USER_PROFILE_FIELDS="phone"))
    created = user.post(create_path(user), data={**BODY, "dob": "abc"}).json
    assert created.keys() == profile.keys()
    unset = {name for name, value in created.items() if value is None}
    properties = {property for _, property, _ in FIELDS.values()}
    assert unset == {*properties, "fields"} - {"phone"}


def test_no_other_field_can_be_configured(make_app):
    """The full set of configurable profile input fields is that of ``FIELDS``."""
    with pytest.raises(SettingError, match="USER_PROFILE_FIELDS=phone,fax"):
        make_app(USER_PROFILE_FIELDS="phone,fax")


def test_session_has_the_properties_of_the_table(administrator):
    """``tokenHash`` is not one of them."""
    (session,) = administrator.get("/api/administrator/sessions").json
    assert session == {
        "sessionid": session["sessionid"],
        "object": "session",
        "appid": administrator.appid,
        "accountid": administrator.accountid,
        "duration": 28800,  # eight hours: the default of this service
        "csrfToken": session["csrfToken"],
        "expiresAt": session["expiresAt"],
        "lastVerifiedAt": session["lastVerifiedAt"],
        "ended": False,
        "createdAt": session["createdAt"],
        "updatedAt": session["updatedAt"],
    }
    assert type(session["duration"]) is int
    assert session["ended"] is False
    assert re.fullmatch("sess_[0-9a-f]{16}", session["sessionid"])
    # In the interface, <CSRF_TOKEN> stands for it.
    assert re.fullmatch("[0-9a-f]{64}", session["csrfToken"])
    for name in ("expiresAt", "lastVerifiedAt", "createdAt", "updatedAt"):
        assert re.fullmatch(TIMESTAMP, session[name])


@pytest.fixture
def tokyo(monkeypatch):
    """The process runs in a time zone that is not UTC."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def utc_now():
    """The clock, in the form of the interface's timestamps."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


def test_timestamps_are_utc(app, user, tokyo):
    """``createdAt`` is when it was created, ``updatedAt`` when it was changed."""
    before = utc_now()
    profile = user.post(create_path(user), data=BODY).json
    session = run(app, "create-session", user.accountid, "--duration", "60")
    time.sleep(0.002)  # so that the changes are in another millisecond
    between = utc_now()
    updated = user.patch(update_path(profile), data=CHANGED).json
    ended = run(app, "end-session", session["sessionid"])
    after = utc_now()
    for created, changed in ((profile, updated), (session, ended)):
        assert before <= created["createdAt"] < between
        assert created["updatedAt"] == created["createdAt"]
        assert between <= changed["updatedAt"] <= after
        assert changed["createdAt"] == created["createdAt"]
    assert session["lastVerifiedAt"] == session["createdAt"]
    assert session["duration"] == 60
    created_at = datetime.fromisoformat(session["createdAt"])
    expires_at = datetime.fromisoformat(session["expiresAt"])
    assert expires_at - created_at == timedelta(seconds=60)


# States and transitions


def test_session_has_ended_or_not(user, administrator):
    """The boolean ``ended``. ``end-sessions`` is this service's own."""
    path = f"/api/administrator/end-sessions?accountid={user.accountid}"
    assert administrator.patch(path).status_code == 200
    sessions = administrator.get("/api/administrator/sessions").json
    states = {session["accountid"]: session["ended"] for session in sessions}
    assert states == {user.accountid: True, administrator.accountid: False}
    assert states[user.accountid] is True


# Endpoints: PATCH /api/user/update-profile?profileid=<profile_id>

# Query. ``profileid`` is required: rule 1.

# Body


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_a_string(user, profile, field):
    """In update and create. Only JSON, or a call, can send a value of another type."""
    body = {**BODY, field: 19500131}  # as a text, it would be a date
    code = f"invalid-{field}"
    assert_error(user.patch(update_path(profile), json=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)
    assert_error(user.post(create_path(user), json=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)


def test_update_profile_ignores_fields_that_are_not_configured(
    make_app, user, administrator, profile
):
    """A field that is not configured is neither required, nor checked, nor changed."""
    phone_only = make_app(APPID=user.appid, USER_PROFILE_FIELDS="phone")
    body = {"phone": "112", "location": "Paris", "full-name": ""}
    client = phone_only.test_client()
    path = update_path(profile)
    updated = client.patch(path, data=body, headers=user.headers).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    assert list_profiles(administrator.caller) == [updated]


def test_other_names_in_a_body_are_ignored(user, administrator, profile):
    """In update and create. In an update, ``default`` is one of them."""
    account = account_of(user)
    others = {
        "profileid": "prof_0123456789abcdef",
        "accountid": administrator.accountid,
        "appid": "elsewhere",
        "object": "account",
        "updatedAt": "2001-01-01T00:00:00.000Z",
        "createdAt": "2001-01-01T00:00:00.000Z",
        "fields": "phone",
        "fullName": "Grace",
    }
    body = {**CHANGED, **others, "default": "true"}
    updated = user.patch(update_path(profile), data=body).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    created = user.post(create_path(user), data={**BODY, **others}).json
    for name, value in others.items():
        assert created[name] != value
    assert list_profiles(administrator.caller) == [created, updated]
    assert account_of(user) == account


# Rules


@pytest.mark.parametrize("query", ["", "?profileid="])
def test_update_profile_rule_1_without_a_profileid(user, profile, query):
    """When the query has no ``profileid``, then error ``invalid-profileid``."""
    body = {**BODY, "profileid": profile["profileid"]}  # one in the body does not count
    response = user.patch(f"/api/user/update-profile{query}", data=body)
    assert_error(response, 400, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, None, BODY)


def test_update_profile_rule_2_an_unknown_profile(user):
    """When the profile cannot be found, then error ``invalid-profileid``."""
    path = "/api/user/update-profile?profileid=prof_0123456789abcdef"
    assert_error(user.patch(path, data=BODY), 404, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, "prof_0123456789abcdef", BODY)


def test_update_profile_rule_3_a_profile_of_another_account(
    another, administrator, profile
):
    """The caller may not access the profile: ``invalid-account``, nothing is stored."""
    response = another.patch(update_path(profile), data=CHANGED)
    assert_error(response, 403, "invalid-account")
    with raises("invalid-account"):
        update_profile(another.caller, profile["profileid"], CHANGED)
    assert list_profiles(administrator.caller) == [profile]


# The configured order: website, location, … company-name, display-name, full-name.
BOTH_WRONG = {**BODY, "full-name": "", "company-name": "1234", "default": "true"}
first_failure = pytest.mark.parametrize(
    "body, code",
    [
        pytest.param(None, "invalid-website", id="no body"),
        pytest.param({"website": "w"}, "invalid-location", id="location is missing"),
        pytest.param(BOTH_WRONG, "invalid-company-name-length", id="two are wrong"),
    ],
)


@first_failure
def test_update_profile_rule_4_first_failure_counts(
    user, administrator, profile, body, code
):
    """The first in configured order, whatever the body's order. Nothing is stored."""
    assert_error(user.patch(update_path(profile), data=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)
    assert list_profiles(administrator.caller) == [profile]


# What the rules refuse, beside a field that is missing or empty.
NO_AT = {"without @": "ada", "@ is first": "@example", "@ is first of two": "@a@b"}
INVALID = {
    "contact-email": NO_AT,
    "display-email": NO_AT,
    "dob": {"not a date": "abc", "not a real date": "1950-02-30"},
}
# A full name has 3 to 6 characters, a display name 4 to 7, a company name 5 to 8. In
# bytes, or in UTF-16, the short ones would be long enough.
INVALID_LENGTH = {
    "full-name": {"too short": "é😀", "too long": "1234567"},
    "display-name": {"too short": "é😀é", "too long": "12345678"},
    "company-name": {"too short": "é😀é😀", "too long": "123456789"},
}
# The field, what is sent, and the code. None: a form leaves the field out; in this
# process the value is None.
REFUSED = [
    pytest.param(field, value, f"invalid-{field}", id=f"rule {rule}: {field}, {kind}")
    for field, (rule, _, _) in FIELDS.items()
    for kind, value in {"missing": None, "empty": "", **INVALID.get(field, {})}.items()
] + [
    pytest.param(
        field,
        value,
        f"invalid-{field}-length",
        id=f"rule {FIELDS[field][0]}: {field}, {kind}",
    )
    for field, values in INVALID_LENGTH.items()
    for kind, value in values.items()
]


@pytest.mark.parametrize("field, value, code", REFUSED)
def test_update_profile_rules_5_to_11_what_is_refused(
    user, profile, field, value, code
):
    """The code of each rule. The id of a failed test names the rule."""
    body = {**BODY, field: value}
    assert_error(user.patch(update_path(profile), data=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)


# The field, and what is sent and stored. A full name has 3 to 6 characters, a display
# name 4 to 7, a company name 5 to 8. In bytes, or in UTF-16, the longest ones would be
# too long.
STORED = [
    pytest.param("full-name", "é😀é", "é😀é", id="rule 5: shortest"),
    pytest.param("full-name", "é😀é😀é😀", "é😀é😀é😀", id="rule 5: longest"),
    pytest.param("display-name", "é😀é ", "é😀é ", id="rule 6: shortest"),
    pytest.param("display-name", "é😀é😀é😀é", "é😀é😀é😀é", id="rule 6: longest"),
    pytest.param("company-name", " é😀é ", " é😀é ", id="rule 7: shortest"),
    pytest.param("company-name", "é😀é😀é😀é😀", "é😀é😀é😀é😀", id="rule 7: longest"),
    pytest.param("contact-email", "a@b.co", "a@b.co", id="rule 8"),
    pytest.param("display-email", "a@b.co", "a@b.co", id="rule 9"),
    pytest.param("dob", "February 1, 1950", "1950-02-01", id="rule 10: YYYY-MM-DD"),
] + [
    pytest.param(field, value, value, id=f"rule 11: {field}, {kind}")
    for field, (rule, _, _) in FIELDS.items()
    for kind, value in {"a letter": "x", "a blank": " "}.items()
    if rule == 11
]
# Update needs an "@" that is not the first character; create refuses these: its rule 4.
NO_ADDRESSES = [
    ("nothing after @", "a@"),
    ("a blank before @", " @"),
    ("no dot", "ada@example"),
    ("255 characters", f"{'x' * 243}@example.com"),
]
ONLY_UPDATED = [
    pytest.param(field, value, value, id=f"{field}, {kind}")
    for field in ("contact-email", "display-email")
    for kind, value in NO_ADDRESSES
]
NOT_CREATED = [
    pytest.param(field, value, f"invalid-{field}", id=f"{field}, {kind}")
    for field in ("contact-email", "display-email")
    for kind, value in NO_ADDRESSES
]


@pytest.mark.parametrize("field, sent, stored", STORED + ONLY_UPDATED)
def test_update_profile_rules_5_to_11_what_is_stored(
    user, administrator, profile, field, sent, stored
):
    """Each field is stored under its property; the response has the new values."""
    response = user.patch(update_path(profile), data={**BODY, field: sent})
    _, property, _ = FIELDS[field]
    updated_at = response.json["updatedAt"]
    assert response.status_code == 200
    assert response.json == profile | {property: stored, "updatedAt": updated_at}
    assert list_profiles(administrator.caller) == [response.json]
    options = {"user_profile_fields": [field]}
    again = update_profile(user.caller, profile["profileid"], {field: sent}, **options)
    assert again[property] == stored


def test_update_profile_rule_12_the_stored_profile_is_updated(
    user, administrator, profile
):
    """Only the validated fields are changed. Cached copies of it are discarded."""
    # Other fields: test_update_profile_ignores_fields_that_are_not_configured.
    second = user.post(create_path(user), data=BODY).json
    path = f"/api/user/profile?profileid={profile['profileid']}"
    assert user.get(path).json == profile
    assert administrator.get("/api/administrator/profiles").json == [second, profile]
    updated = user.patch(update_path(profile), data=CHANGED).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    assert administrator.get("/api/administrator/profiles").json == [second, updated]
    assert user.get(path).json == updated


def test_update_profile_rule_13_a_missing_body_is_an_empty_one(user, profile):
    """A missing body is treated as an empty body."""
    assert_error(user.patch(update_path(profile)), 400, "invalid-website")
    with raises("invalid-website"):
        update_profile(user.caller, profile["profileid"], None)


# Response. The profile with the new values: rules 5 to 11.


# Endpoints: POST /api/user/create-profile?accountid=<account_id>

# Query. ``accountid`` is required: rule 1.

# Body. Every field is a string: see update's body.


def test_create_profile_with_default_true(user, administrator):
    """The new profile becomes the account's default: its ``profileid`` is set to it."""
    account = account_of(user)
    body = {**BODY, "default": "true"}
    first = user.post(create_path(user), data=body).json
    changed = account_of(user)
    default = {"profileid": first["profileid"], "updatedAt": changed["updatedAt"]}
    assert changed == account | default
    assert administrator.caller.profileid is None
    second = create_profile(user.caller, user.accountid, body)
    assert user.caller.profileid == second["profileid"]


@pytest.mark.parametrize(
    "default", [None, "TRUE", "true ", " true", "1", "yes", ["false", "true"]], ids=repr
)
def test_create_profile_with_any_other_default(user, default):
    """Any other value than exactly ``true`` leaves the account unchanged."""
    user.post(create_path(user), data={**BODY, "default": "true"})
    account = account_of(user)
    body = {**BODY, "default": default}
    assert user.post(create_path(user), data=body).status_code == 201
    assert account_of(user) == account
    create_profile(user.caller, user.accountid, body)
    assert account_of(user) == account


# Rules


@pytest.mark.parametrize("query", ["", "?accountid="])
def test_create_profile_rule_1_without_an_accountid(user, query):
    """When the query has no ``accountid``, then ``invalid-accountid``."""
    body = {**BODY, "accountid": user.accountid}  # one in the body does not count
    response = user.post(f"/api/user/create-profile{query}", data=body)
    assert_error(response, 400, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, None, BODY)


def test_create_profile_rule_2_an_unknown_account(user):
    """When the account cannot be found, then ``invalid-accountid``."""
    path = "/api/user/create-profile?accountid=acct_0123456789abcdef"
    assert_error(user.post(path, data=BODY), 404, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, "acct_0123456789abcdef", BODY)


def test_create_profile_rule_3_an_account_of_another_user(user, another, administrator):
    """The caller may not access the account: ``invalid-account``, nothing is stored."""
    account = account_of(user)
    body = {**BODY, "default": "true"}
    assert_error(another.post(create_path(user), data=body), 403, "invalid-account")
    with raises("invalid-account"):
        create_profile(another.caller, user.accountid, body)
    assert administrator.get("/api/administrator/profiles").data == b"null\n"
    assert account_of(user) == account


@first_failure
def test_create_profile_rule_4_first_failure_counts(user, administrator, body, code):
    """Update's rule 4: the first in configured order. Nothing is stored."""
    account = account_of(user)
    assert_error(user.post(create_path(user), data=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)
    assert list_profiles(administrator.caller) is None
    assert account_of(user) == account


# Update's rules 5 to 11, with one difference: an address must also be valid.


@pytest.mark.parametrize("field, value, code", REFUSED + NOT_CREATED)
def test_create_profile_rule_4_what_is_refused(user, field, value, code):
    """The code of each rule. The id of a failed test names the rule."""
    body = {**BODY, field: value}
    assert_error(user.post(create_path(user), data=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)
    with raises(code):
        create_profile(user.caller, user.accountid, body, user_profile_fields=[field])


@pytest.mark.parametrize("field, sent, stored", STORED)
def test_create_profile_rule_4_what_is_stored(user, administrator, field, sent, stored):
    """Update's rules 5 to 11. Each field is stored under its property."""
    created = user.post(create_path(user), data={**BODY, field: sent}).json
    _, property, _ = FIELDS[field]
    assert created[property] == stored
    assert list_profiles(administrator.caller) == [created]


def test_create_profile_rule_5_the_stored_profile_is_returned(
    user, administrator, profile
):
    """As read back, with the given ``accountid`` and the application id."""
    assert profile["accountid"] == user.accountid
    assert profile["appid"] == user.appid
    assert administrator.get("/api/administrator/profiles").json == [profile]


# Response. The profile: test_profile_has_the_properties_of_the_table.


# Endpoints: GET /api/administrator/sessions


@pytest.fixture
def sessions(app, administrator):
    """The sessions of four accounts, newest first; the administrator's is the last."""
    clients = [administrator, sign_in(app), sign_in(app), sign_in(app)]
    for client in clients:
        del client.session["token"]  # shown once
    return [client.session for client in reversed(clients)]


# Of four rows, newest first, a query returns rows[start:end].
pages = pytest.mark.parametrize(
    "query, start, end",
    [
        ({}, 0, 2),  # the defaults: PAGE_SIZE and 0
        ({"limit": 3}, 0, 3),
        ({"limit": 1, "offset": 1}, 1, 2),
        ({"all": "false", "limit": 1, "offset": 1}, 0, 4),  # not empty, so it counts
        ({"all": "", "limit": 1, "offset": 1}, 1, 2),
    ],
    ids=repr,
)
# Of four rows, these queries match none.
none_matches = pytest.mark.parametrize(
    "query", [{"accountid": "acct_0123456789abcdef"}, {"offset": 4}], ids=repr
)

# Query. ``all``, ``limit`` and ``offset``: rule 2.


def test_list_sessions_of_one_account(administrator, sessions):
    """The query's ``accountid``: restrict to sessions of this account."""
    session = sessions[1]
    accountid = session["accountid"]
    path = f"/api/administrator/sessions?accountid={accountid}"
    assert administrator.get(path).json == [session]
    assert list_sessions(administrator.caller, accountid=accountid) == [session]


# Rules


def test_list_sessions_rule_1_newest_first(app, administrator, sessions):
    """Ordered by ``createdAt``, not by ``updatedAt`` or ``expiresAt``."""
    newest = run(app, "create-session", administrator.accountid, "--duration", "60")
    oldest_but_one = run(app, "end-session", sessions[2]["sessionid"])
    del newest["token"]
    expected = [newest, *sessions[:2], oldest_but_one, sessions[3]]
    found = administrator.get("/api/administrator/sessions?all=true").json
    assert found == expected
    assert list_sessions(administrator.caller, all=True) == expected


@pages
def test_list_sessions_rule_2_a_slice(administrator, sessions, query, start, end):
    """At most ``limit`` from ``offset``; a non-empty ``all`` returns every row."""
    response = administrator.get("/api/administrator/sessions", query_string=query)
    assert response.status_code == 200
    assert response.json == sessions[start:end]
    assert list_sessions(administrator.caller, **query) == sessions[start:end]


@none_matches
def test_list_sessions_rule_3_null_when_none_matches(administrator, sessions, query):
    """When no session matches, the result is null rather than an empty array."""
    response = administrator.get("/api/administrator/sessions", query_string=query)
    assert response.status_code == 200
    assert response.data == b"null\n"
    assert list_sessions(administrator.caller, **query) is None


def test_list_sessions_rule_4_token_hash_is_redacted(user, administrator):
    """Each element is a session object with ``tokenHash`` redacted."""
    response = administrator.get("/api/administrator/sessions?all=true")
    assert [session["object"] for session in response.json] == ["session", "session"]
    for client in (user, administrator):
        token_hash = sha256(client.token.encode()).hexdigest()
        assert token_hash not in response.text  # nor under any other name
        assert client.token not in response.text
    assert "tokenHash" not in response.text
    first, second = response.json
    assert first["csrfToken"] != second["csrfToken"]
    assert list_sessions(administrator.caller) == response.json


# Response. An array of session objects: rule 1.


# Endpoints: GET /api/administrator/profiles


@pytest.fixture
def profiles(user, administrator):
    """Newest first: the user's, the administrator's, two more of the user's."""
    created = []
    for owner in (user, user, administrator, user):
        created.append(owner.post(create_path(owner), data=BODY).json)
    return created[::-1]


# Query. ``all``, ``limit`` and ``offset``: rule 2.


def test_list_profiles_of_one_account(user, administrator, profiles):
    """The query's ``accountid``: restrict to profiles of this account."""
    own = profiles[:1] + profiles[2:]
    path = f"/api/administrator/profiles?accountid={user.accountid}"
    assert administrator.get(path).json == own[:2]
    assert administrator.get(f"{path}&all=true").json == own
    query = {"accountid": user.accountid, "limit": 1, "offset": 1}
    assert list_profiles(administrator.caller, **query) == [profiles[2]]


# Rules


def test_list_profiles_rule_1_newest_first(user, administrator, profiles):
    """Profiles are ordered by ``createdAt``, newest first; an update moves none."""
    profiles[3] = update_profile(user.caller, profiles[3]["profileid"], BODY)
    found = administrator.get("/api/administrator/profiles?all=true").json
    assert found == profiles
    assert list_profiles(administrator.caller, all=True) == profiles


@pages
def test_list_profiles_rule_2_a_slice(administrator, profiles, query, start, end):
    """At most ``limit`` from ``offset``; a non-empty ``all`` returns every row."""
    response = administrator.get("/api/administrator/profiles", query_string=query)
    assert response.status_code == 200
    assert response.json == profiles[start:end]
    assert list_profiles(administrator.caller, **query) == profiles[start:end]


@none_matches
def test_list_profiles_rule_3_null_when_none_matches(administrator, profiles, query):
    """When no profile matches, the result is null rather than an empty array."""
    response = administrator.get("/api/administrator/profiles", query_string=query)
    assert response.status_code == 200
    assert response.data == b"null\n"
    assert list_profiles(administrator.caller, **query) is None


# Response. An array of profile objects: rule 1.


# Authentication. "The user operations act only on the caller's own account and
# profiles": rule 3 of update and of create.


@pytest.mark.parametrize("method, path", ENDPOINTS)
def test_each_request_needs_a_session(client, method, path):
    """Without a token, or with a wrong one, a request is refused."""
    assert_error(client.open(path, method=method), 401, "sign-in-required")
    wrong = {"Authorization": f"Bearer {'0' * 64}"}
    response = client.open(path, method=method, headers=wrong)
    assert_error(response, 401, "sign-in-required")


def test_the_session_must_still_run(app, user, administrator, monkeypatch):
    """A session that was ended, or that expires at this moment, is refused."""
    run(app, "end-session", user.session["sessionid"])
    session = run(app, "create-session", user.accountid, "--duration", "1")
    moment = datetime.fromisoformat(session["expiresAt"]).timestamp()
    monkeypatch.setattr(time, "time_ns", lambda: round(moment * 1_000) * 10**6)
    expired = {"Authorization": f"Bearer {session['token']}"}
    for method, path in ENDPOINTS:
        response = user.open(path, method=method)
        assert_error(response, 401, "sign-in-required", "ended")
        response = user.open(path, method=method, headers=expired)
        assert_error(response, 401, "sign-in-required", "expired")
    newest = administrator.get("/api/administrator/sessions").json[0]
    assert newest["sessionid"] == session["sessionid"]
    assert newest["ended"] is True


@pytest.mark.parametrize(
    "path, operation",
    [
        ("/api/administrator/sessions", list_sessions),
        ("/api/administrator/profiles", list_profiles),
    ],
)
def test_administrator_operations_are_for_administrators(user, path, operation):
    """The code for another caller, ``administrator-required``, is this service's."""
    assert_error(user.get(path), 403, "administrator-required")
    with raises("administrator-required"):
        operation(user.caller)


# Errors. The table's codes are proven over HTTP and in this process by rules 1 to 3 of
# update and of create, REFUSED, and NOT_CREATED. Rows "missing" and "empty" of REFUSED
# show the general pattern.


# Limits. ``app`` has all settings.
# - USER_PROFILE_FIELDS: test_profile_properties_are_null_until_set for create,
#   test_update_profile_ignores_fields_that_are_not_configured for update.
# - The six lengths: rules 5 to 7 of REFUSED and STORED. PAGE_SIZE: ``pages``, first.


@pytest.mark.parametrize(
    "fields, changes",
    [
        (["location"], {"location": "Paris"}),
        (["location", "location"], {"location": "Paris"}),
        ([], {}),  # no field is required, and none is stored
    ],
    ids=["one", "the same twice", "none"],
)
def test_user_profile_fields_of_one_call(make_app, user, profile, fields, changes):
    """``userProfileFields``, in this process: a list that replaces the setting."""
    phone_only = make_app(APPID=user.appid, USER_PROFILE_FIELDS="phone")
    body = {"phone": "112", "location": "Paris", "default": "true"}
    options = {"user_profile_fields": fields}
    with phone_only.app_context():
        created = create_profile(user.caller, user.accountid, body, **options)
        updated = update_profile(user.caller, profile["profileid"], body, **options)
    assert user.caller.profileid == created["profileid"]
    assert created["phone"] is None
    assert created["location"] == changes.get("location")
    assert updated == profile | changes | {"updatedAt": updated["updatedAt"]}


def test_user_profile_fields_are_required_in_their_order(user, profile):
    """The first of the list counts, in whatever order the setting has the fields."""
    fields = ["occupation", "website", "contact-email"]
    with raises("invalid-occupation"):
        create_profile(user.caller, user.accountid, {}, user_profile_fields=fields)
    with raises("invalid-occupation"):
        update_profile(
            user.caller, profile["profileid"], {}, user_profile_fields=fields
        )


@pytest.mark.parametrize(
    "query, body",
    [
        ("", {"data": {"phone": "112", "userProfileFields": "phone"}}),
        ("", {"json": {"phone": "112", "userProfileFields": ["phone"]}}),
        ("&userProfileFields=phone", {"data": {"phone": "112"}}),
    ],
    ids=["form", "JSON", "query"],
)
def test_no_request_replaces_the_setting(user, query, body):
    """Over HTTP, ``userProfileFields`` is ignored."""
    response = user.post(create_path(user) + query, **body)
    assert_error(response, 400, "invalid-website")


def test_user_profile_fields_is_not_a_string(user, administrator):
    """A string is refused: it is not a list of one name."""
    with pytest.raises((ServiceError, TypeError)):
        create_profile(user.caller, user.accountid, BODY, user_profile_fields="dob")
    assert list_profiles(administrator.caller) is None


@pytest.mark.parametrize("field", INVALID_LENGTH)
def test_a_minimum_of_0_and_the_default_maximum(make_app, field):
    """A minimum of 0 does not allow an empty name. The default maximum is 50."""
    setting = field.upper().replace("-", "_")
    minimum = {f"MINIMUM_PROFILE_{setting}_LENGTH": "0"}
    user = sign_in(make_app(USER_PROFILE_FIELDS=field, **minimum))
    path = create_path(user)
    assert_error(user.post(path, data={field: ""}), 400, f"invalid-{field}")
    assert user.post(path, data={field: "x"}).status_code == 201
    assert user.post(path, data={field: "x" * 50}).status_code == 201
    response = user.post(path, data={field: "x" * 51})
    assert_error(response, 400, f"invalid-{field}-length")
