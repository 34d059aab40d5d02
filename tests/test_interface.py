"""The interface, sentence by sentence, in its order.

A test has the section and the rule in its name; its docstring says what the rule says.
Most tests make a request, and then the same call in this process.
``assert_error(response, status, code)``: the body is
``{"object": "error", "message": code}``. Statuses are this service's own.
"""

import re

import pytest
from service import assert_error, sign_in

from errors import ServiceError, SettingError
from operations import create_profile, list_profiles, list_sessions, update_profile

MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
BODY = {  # the ten fields, in the reverse order of the interface's table
    "website": "https://example.com",
    "location": "London",
    "occupation": "Mathematician",
    "phone": "+44 20 7946 0958",
    "dob": "1950-01-31",
    "company-name": "Engines",
    "display-name": "Ada B.",
    "display-email": "hello@example.com",
    "contact-email": "ada@example.com",
    "full-name": "Ada K",
}


@pytest.fixture
def app(make_app):
    """The service of ``user``, ``administrator`` and ``client`` in this file.

    A full name has 3 to 6 characters, a display name 4 to 7, a company name 5 to 8.
    """
    app = make_app(
        USER_PROFILE_FIELDS=",".join(BODY),
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
    path = f"/api/user/create-profile?accountid={user.accountid}"
    return user.post(path, data=BODY).json


def raises(code):
    """An error in this process, whose message is the code."""
    return pytest.raises(ServiceError, match=f"^{code}$")


# What the service does


def test_all_is_scoped_to_one_application(app, user, administrator, profile):
    """That of the instance, unless a request carries another id, in ``X-Appid``."""
    other = sign_in(app, administrator=True, appid=f"other-{user.appid}")
    assert other.headers["X-Appid"] == other.appid
    path = f"/api/user/create-profile?accountid={other.accountid}"
    assert_error(user.post(path, data=BODY), 404, "invalid-accountid")
    made = other.post(path, data=BODY).json
    assert made["appid"] == other.appid
    path = f"/api/user/update-profile?profileid={made['profileid']}"
    assert_error(user.patch(path, data=BODY), 404, "invalid-profileid")
    assert other.get("/api/administrator/profiles").json == [made]
    assert administrator.get("/api/administrator/profiles").json == [profile]
    assert len(other.get("/api/administrator/sessions").json) == 1


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_is_simple_or_multipart(user, content_type):
    path = f"/api/user/create-profile?accountid={user.accountid}"
    made = user.post(path, data=BODY, content_type=content_type).json
    path = f"/api/user/update-profile?profileid={made['profileid']}"
    body = {**BODY, "phone": "112"}
    updated = user.patch(path, data=body, content_type=content_type).json
    assert made["phone"] == "+44 20 7946 0958"
    assert updated["phone"] == "112"


def test_each_operation_is_callable_in_process(user, administrator):
    """Its errors are with each rule below, by ``raises``."""
    made = create_profile(user.caller, user.accountid, BODY)
    body = {**BODY, "phone": "112"}
    updated = update_profile(user.caller, made["profileid"], body)
    assert updated["phone"] == "112"
    assert list_profiles(administrator.caller) == [updated]
    assert administrator.get("/api/administrator/profiles").json == [updated]
    sessions = list_sessions(administrator.caller)
    assert sessions == administrator.get("/api/administrator/sessions").json


# Resources and their fields


def test_profile_has_the_properties_of_the_table(user):
    """Each input field is in its property, ``fields`` is null."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    response = user.post(path, data=BODY)
    profile = response.json
    assert response.status_code == 201
    assert profile == {
        "profileid": profile["profileid"],
        "object": "profile",
        "appid": user.appid,
        "accountid": user.accountid,
        "companyName": "Engines",
        "fullName": "Ada K",
        "contactEmail": "ada@example.com",
        "displayEmail": "hello@example.com",
        "displayName": "Ada B.",
        "phone": "+44 20 7946 0958",
        "occupation": "Mathematician",
        "location": "London",
        "dob": "1950-01-31",
        "website": "https://example.com",
        "fields": None,
        "createdAt": profile["createdAt"],
        "updatedAt": profile["updatedAt"],
    }
    assert re.fullmatch("prof_[0-9a-f]{16}", profile["profileid"])
    assert re.fullmatch("acct_[0-9a-f]{16}", profile["accountid"])
    assert re.fullmatch(MOMENT, profile["createdAt"])
    assert re.fullmatch(MOMENT, profile["updatedAt"])


@pytest.mark.parametrize("field", ["phone", "location"])
def test_profile_properties_are_null_until_set(make_app, field):
    """Create ignores the fields that are not configured."""
    user = sign_in(make_app(USER_PROFILE_FIELDS=field))
    path = f"/api/user/create-profile?accountid={user.accountid}"
    profile = user.post(path, data=BODY).json
    always = {"profileid", "object", "appid", "accountid", "createdAt", "updatedAt"}
    given = {name for name, value in profile.items() if value is not None}
    assert given == {*always, field}


def test_no_other_field_can_be_configured(make_app):
    """The full set of configurable profile input fields is the ten of ``BODY``."""
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
        "duration": 28800,
        "csrfToken": session["csrfToken"],
        "expiresAt": session["expiresAt"],
        "lastVerifiedAt": session["lastVerifiedAt"],
        "ended": False,
        "createdAt": session["createdAt"],
        "updatedAt": session["updatedAt"],
    }
    assert re.fullmatch("sess_[0-9a-f]{16}", session["sessionid"])
    assert re.fullmatch("[0-9a-f]{64}", session["csrfToken"])
    for name in ("expiresAt", "lastVerifiedAt", "createdAt", "updatedAt"):
        assert re.fullmatch(MOMENT, session[name])


# States and transitions


def test_session_has_ended_or_not(user, administrator):
    path = f"/api/administrator/end-sessions?accountid={user.accountid}"
    administrator.patch(path)
    sessions = administrator.get("/api/administrator/sessions").json
    states = {session["accountid"]: session["ended"] for session in sessions}
    assert states == {user.accountid: True, administrator.accountid: False}


# Endpoints: PATCH /api/user/update-profile?profileid=<profile_id>


def test_update_ignores_fields_that_are_not_configured(make_app, user, profile):
    """A field is required if it is configured, and otherwise left unchanged."""
    app = make_app(APPID=user.appid, USER_PROFILE_FIELDS="phone")
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    body = {"phone": "112", "location": "Paris", "full-name": ""}
    updated = app.test_client().patch(path, data=body, headers=user.headers).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}


@pytest.mark.parametrize(
    "path", ["/api/user/update-profile", "/api/user/update-profile?profileid="]
)
def test_update_rule_1_without_a_profileid(user, path):
    """When the query has no ``profileid``, then error ``invalid-profileid``."""
    assert_error(user.patch(path, data=BODY), 400, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, None, BODY)


def test_update_rule_2_an_unknown_profile(user):
    """When the profile cannot be found, then error ``invalid-profileid``."""
    path = "/api/user/update-profile?profileid=prof_0123456789abcdef"
    assert_error(user.patch(path, data=BODY), 404, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, "prof_0123456789abcdef", BODY)


def test_update_rule_3_a_profile_of_another_account(administrator, profile):
    """When the caller may not access it: ``invalid-account``. Nothing is stored."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    body = {**BODY, "phone": "112"}
    assert_error(administrator.patch(path, data=body), 403, "invalid-account")
    with raises("invalid-account"):
        update_profile(administrator.caller, profile["profileid"], body)
    assert list_profiles(administrator.caller) == [profile]


def test_update_rule_4_the_first_failure_counts(user, administrator, profile):
    """First in configured order: website, location, and so on. Nothing is stored."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    response = user.patch(path, data={"website": "w"})
    assert_error(response, 400, "invalid-location")
    assert list_profiles(administrator.caller) == [profile]


# Rules 5 to 11: the field, what is sent, and the code. A form has no field for None.
REFUSED = {
    # Rules 5 to 7: present and non-empty, of at least the minimum and at most the
    # maximum of characters, both inclusive.
    "rule 5: missing": ("full-name", None, "invalid-full-name"),
    "rule 5: empty": ("full-name", "", "invalid-full-name"),
    "rule 5: too short": ("full-name", "12", "invalid-full-name-length"),
    "rule 5: too long": ("full-name", "1234567", "invalid-full-name-length"),
    "rule 6: missing": ("display-name", None, "invalid-display-name"),
    "rule 6: empty": ("display-name", "", "invalid-display-name"),
    "rule 6: too short": ("display-name", "123", "invalid-display-name-length"),
    "rule 6: too long": ("display-name", "12345678", "invalid-display-name-length"),
    "rule 7: missing": ("company-name", None, "invalid-company-name"),
    "rule 7: empty": ("company-name", "", "invalid-company-name"),
    "rule 7: too short": ("company-name", "1234", "invalid-company-name-length"),
    "rule 7: too long": ("company-name", "123456789", "invalid-company-name-length"),
    # Rules 8 and 9: present, with an @ that is not the first character.
    "rule 8: missing": ("contact-email", None, "invalid-contact-email"),
    "rule 8: without @": ("contact-email", "ada", "invalid-contact-email"),
    "rule 8: @ is first": ("contact-email", "@example", "invalid-contact-email"),
    "rule 9: missing": ("display-email", None, "invalid-display-email"),
    "rule 9: without @": ("display-email", "ada", "invalid-display-email"),
    "rule 9: @ is first": ("display-email", "@example", "invalid-display-email"),
    # Rule 10: present, non-empty, and a date.
    "rule 10: missing": ("dob", None, "invalid-dob"),
    "rule 10: empty": ("dob", "", "invalid-dob"),
    "rule 10: no date": ("dob", "1950-02-30", "invalid-dob"),
    # Rule 11: present and non-empty.
    "rule 11: no phone": ("phone", None, "invalid-phone"),
    "rule 11: empty phone": ("phone", "", "invalid-phone"),
    "rule 11: no occupation": ("occupation", None, "invalid-occupation"),
    "rule 11: empty occupation": ("occupation", "", "invalid-occupation"),
    "rule 11: no location": ("location", None, "invalid-location"),
    "rule 11: empty location": ("location", "", "invalid-location"),
    "rule 11: no website": ("website", None, "invalid-website"),
    "rule 11: empty website": ("website", "", "invalid-website"),
}
refused = pytest.mark.parametrize("field, text, code", REFUSED.values(), ids=REFUSED)


@refused
def test_update_rules_5_to_11_what_is_refused(user, profile, field, text, code):
    """The code of each rule. A failure names the rule."""
    body = {**BODY, field: text}
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    assert_error(user.patch(path, data=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)


# Rules 5 to 11: the field, what is sent, and what the profile has then.
STORED = {
    "rule 5: shortest": ("full-name", "123", {"fullName": "123"}),
    "rule 5: longest": ("full-name", "123456", {"fullName": "123456"}),
    "rule 6: shortest": ("display-name", "1234", {"displayName": "1234"}),
    "rule 6: longest": ("display-name", "1234567", {"displayName": "1234567"}),
    "rule 7: shortest": ("company-name", "12345", {"companyName": "12345"}),
    "rule 7: longest": ("company-name", "12345678", {"companyName": "12345678"}),
    "rule 8": ("contact-email", "a@", {"contactEmail": "a@"}),
    "rule 9": ("display-email", "a@", {"displayEmail": "a@"}),
    "rule 10": ("dob", "February 1, 1950", {"dob": "1950-02-01"}),
    "rule 11: phone": ("phone", "112", {"phone": "112"}),
    "rule 11: occupation": ("occupation", "Poet", {"occupation": "Poet"}),
    "rule 11: location": ("location", "Paris", {"location": "Paris"}),
    "rule 11: website": ("website", "w", {"website": "w"}),
}


@pytest.mark.parametrize("field, text, stored", STORED.values(), ids=STORED)
def test_update_rules_5_to_11_what_is_stored(user, profile, field, text, stored):
    """Under which property. The response is the profile with the new values."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    response = user.patch(path, data={**BODY, field: text})
    updated_at = response.json["updatedAt"]
    assert response.status_code == 200
    assert response.json == profile | stored | {"updatedAt": updated_at}


def test_update_rule_12_the_stored_profile_is_updated(user, administrator, profile):
    """Only the validated fields are changed. Cached copies of it are discarded."""
    assert administrator.get("/api/administrator/profiles").json == [profile]
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    updated = user.patch(path, data={**BODY, "phone": "112"}).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    assert administrator.get("/api/administrator/profiles").json == [updated]


def test_update_rule_13_a_missing_body_is_an_empty_one(user, profile):
    """A missing body is treated as an empty body."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    assert_error(user.patch(path), 400, "invalid-website")
    with raises("invalid-website"):
        update_profile(user.caller, profile["profileid"], None)


# Endpoints: POST /api/user/create-profile?accountid=<account_id>


def test_create_with_default_true(user):
    """The new profile becomes the account's: its ``profileid`` is set to it."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    profile = user.post(path, data={**BODY, "default": "true"}).json
    assert user.caller.profileid == profile["profileid"]


@pytest.mark.parametrize("default", [None, "", "false", "True", "1"])
def test_create_with_any_other_default(user, default):
    """Any other value than exactly ``true`` leaves the account unchanged."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    first = user.post(path, data={**BODY, "default": "true"}).json
    response = user.post(path, data={**BODY, "default": default})
    assert response.status_code == 201
    assert user.caller.profileid == first["profileid"]


@pytest.mark.parametrize(
    "path", ["/api/user/create-profile", "/api/user/create-profile?accountid="]
)
def test_create_rule_1_without_an_accountid(user, path):
    """When the query has no ``accountid``, then ``invalid-accountid``."""
    assert_error(user.post(path, data=BODY), 400, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, None, BODY)


def test_create_rule_2_an_unknown_account(user):
    """When the account cannot be found, then ``invalid-accountid``."""
    path = "/api/user/create-profile?accountid=acct_0123456789abcdef"
    assert_error(user.post(path, data=BODY), 404, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, "acct_0123456789abcdef", BODY)


def test_create_rule_3_an_account_of_another_user(user, administrator):
    """When the caller may not access it: ``invalid-account``. Nothing is stored."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    assert_error(administrator.post(path, data=BODY), 403, "invalid-account")
    with raises("invalid-account"):
        create_profile(administrator.caller, user.accountid, BODY)
    assert list_profiles(administrator.caller) is None


def test_create_rule_4_the_first_failure_counts(user, administrator):
    """Update's rule 4: the first in configured order. Nothing is stored."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    response = user.post(path, data={"website": "w"})
    assert_error(response, 400, "invalid-location")
    assert list_profiles(administrator.caller) is None


@refused
def test_create_rule_4_what_is_refused(user, field, text, code):
    """Update's rules 5 to 11. A failure names the rule."""
    body = {**BODY, field: text}
    path = f"/api/user/create-profile?accountid={user.accountid}"
    assert_error(user.post(path, data=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)


@pytest.mark.parametrize("field", ["contact-email", "display-email"])
def test_create_rule_4_an_address_must_be_valid(user, field):
    """The one difference: both must also be a valid e-mail address."""
    body = {**BODY, field: "ada@example"}
    path = f"/api/user/create-profile?accountid={user.accountid}"
    assert_error(user.post(path, data=body), 400, f"invalid-{field}")
    with raises(f"invalid-{field}"):
        create_profile(user.caller, user.accountid, body)


def test_create_rule_5_the_stored_profile_is_returned(user, administrator):
    """As read back, with the given ``accountid`` and the application id."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    profile = user.post(path, data=BODY).json
    assert profile["accountid"] == user.accountid
    assert profile["appid"] == user.appid
    assert administrator.get("/api/administrator/profiles").json == [profile]


# Endpoints: GET /api/administrator/sessions


@pytest.fixture
def sessions(app, administrator):
    """Of four accounts, the newest first; the administrator's is the last."""
    clients = [administrator, sign_in(app), sign_in(app), sign_in(app)]
    for client in clients:
        del client.session["token"]  # shown once
    return [client.session for client in reversed(clients)]


# Which of four rows, the newest first, a query returns: from, and up to.
pages = pytest.mark.parametrize(
    "query, start, end",
    [
        ("", 0, 2),  # the defaults: PAGE_SIZE and 0
        ("?limit=3", 0, 3),
        ("?offset=1", 1, 3),
        ("?limit=1&offset=1", 1, 2),
        ("?all=false&limit=1&offset=1", 0, 4),
        ("?all=&limit=1&offset=1", 1, 2),
    ],
)


def test_sessions_of_one_account(administrator, sessions):
    """The query's ``accountid``: restrict to sessions of this account."""
    accountid = sessions[1]["accountid"]
    found = administrator.get(f"/api/administrator/sessions?accountid={accountid}")
    assert found.json == [sessions[1]]
    assert list_sessions(administrator.caller, accountid=accountid) == [sessions[1]]


def test_sessions_rule_1_newest_first(administrator, sessions):
    """Sessions are ordered by ``createdAt``, newest first."""
    found = administrator.get("/api/administrator/sessions?all=true").json
    assert found == sessions
    assert list_sessions(administrator.caller, all=True) == sessions


@pages
def test_sessions_rule_2_a_slice(administrator, sessions, query, start, end):
    """At most ``limit`` items from ``offset``; ``all``, if non-empty, ignores both."""
    response = administrator.get(f"/api/administrator/sessions{query}")
    assert response.status_code == 200
    assert response.json == sessions[start:end]


def test_sessions_rule_3_null_when_none_matches(administrator):
    """When no session matches, the result is null rather than an empty array."""
    query = "accountid=acct_0123456789abcdef"
    response = administrator.get(f"/api/administrator/sessions?{query}")
    assert response.data == b"null\n"
    assert list_sessions(administrator.caller, offset=1) is None


def test_sessions_rule_4_token_hash_is_redacted(administrator):
    """Each element is a session object with ``tokenHash`` redacted."""
    (session,) = administrator.get("/api/administrator/sessions?all=true").json
    assert session["object"] == "session"
    assert "tokenHash" not in session
    assert list_sessions(administrator.caller) == [session]


# Endpoints: GET /api/administrator/profiles


@pytest.fixture
def profiles(user, administrator):
    """The newest first: the user's, the administrator's, two of the user."""
    made = []
    for owner in (user, user, administrator, user):
        path = f"/api/user/create-profile?accountid={owner.accountid}"
        made.append(owner.post(path, data=BODY).json)
    return made[::-1]


def test_profiles_of_one_account(user, administrator, profiles):
    """The query's ``accountid``: restrict to profiles of this account."""
    accountid = user.accountid
    found = administrator.get(f"/api/administrator/profiles?accountid={accountid}")
    assert found.json == [profiles[0], profiles[2]]
    page = list_profiles(administrator.caller, accountid=accountid, limit=1, offset=1)
    assert page == [profiles[2]]


def test_profiles_rule_1_newest_first(administrator, profiles):
    """Profiles are ordered by ``createdAt``, newest first."""
    found = administrator.get("/api/administrator/profiles?all=true").json
    assert found == profiles
    assert list_profiles(administrator.caller, all=True) == profiles


@pages
def test_profiles_rule_2_a_slice(administrator, profiles, query, start, end):
    """At most ``limit`` items from ``offset``; with ``all`` every profile."""
    response = administrator.get(f"/api/administrator/profiles{query}")
    assert response.status_code == 200
    assert response.json == profiles[start:end]


def test_profiles_rule_3_null_when_none_matches(administrator):
    """When no profile matches, the result is null rather than an empty array."""
    response = administrator.get("/api/administrator/profiles")
    assert response.data == b"null\n"
    assert list_profiles(administrator.caller) is None


# Authentication. "The user operations act only on the caller's own account and
# profiles": rule 3 of update and of create.


@pytest.mark.parametrize(
    "method, path",
    [
        ("PATCH", "/api/user/update-profile"),
        ("POST", "/api/user/create-profile"),
        ("GET", "/api/administrator/sessions"),
        ("GET", "/api/administrator/profiles"),
    ],
)
def test_each_request_needs_a_session(client, method, path):
    """``user`` and ``administrator`` send ``Authorization: Bearer <token>``."""
    assert_error(client.open(path, method=method), 401, "sign-in-required")


@pytest.mark.parametrize(
    "path, operation",
    [
        ("/api/administrator/sessions", list_sessions),
        ("/api/administrator/profiles", list_profiles),
    ],
)
def test_administrator_operations_are_for_administrators(user, path, operation):
    assert_error(user.get(path), 403, "administrator-required")
    with raises("administrator-required"):
        operation(user.caller)


# Errors. The table's codes are proven over HTTP and in this process:
# - invalid-profileid, invalid-accountid, invalid-account: rules 1 to 3 of update and
#   of create.
# - all others: REFUSED, for update and for create. Its rows "missing" and "no" show
#   the general pattern.


# Limits. ``app`` has all settings.
# - USER_PROFILE_FIELDS: test_profile_properties_are_null_until_set for create,
#   test_update_ignores_fields_that_are_not_configured for update.
# - The six lengths: rules 5 to 7 of REFUSED and STORED.
# - PAGE_SIZE: the first of ``pages``.


def test_user_profile_fields_of_one_call(user, profile):
    """``userProfileFields``: in this process, a list of the call."""
    options = {"user_profile_fields": ["phone"]}
    body = {"phone": "112", "location": "Paris"}
    made = create_profile(user.caller, user.accountid, body, **options)
    assert made["location"] is None
    updated = update_profile(user.caller, profile["profileid"], body, **options)
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    with raises("invalid-phone"):
        create_profile(user.caller, user.accountid, {}, **options)
