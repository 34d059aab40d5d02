"""The interface, sentence by sentence, in its order.

A test has the section and the rule in its name; its docstring says what the rule says.
Most tests make a request, and then the same call in this process: in Python, where the
interface says NodeJS. ``assert_error(response, status, code)``: the body is
``{"object": "error", "message": code}``. Statuses, and the codes in "Authentication",
are this service's own. Events and Versioning are not shown: there is nothing to prove.
"""

import re

import pytest
from service import assert_error, sign_in

from errors import ServiceError, SettingError
from operations import create_profile, list_profiles, list_sessions, update_profile

MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
# In the reverse order of the mapping table, so that the configured order is not the
# table's; ten different values.
BODY = {
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
CHANGED = {**BODY, "phone": "112"}


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


@pytest.fixture(params=["ordinary", "administrator"])
def another(app, request):
    """A client of another account: an ordinary one, or an administrator."""
    return sign_in(app, administrator=request.param == "administrator")


def raises(code):
    """An error in this process, whose message is the code."""
    return pytest.raises(ServiceError, match=f"^{code}$")


# What the service does


def test_all_is_scoped_to_one_application(app, user, administrator, profile):
    """The application is that of the instance, unless the request names another."""
    other = sign_in(app, administrator=True, appid=f"other-{user.appid}")
    assert other.headers["X-Appid"] == other.appid  # names another
    path = f"/api/user/create-profile?accountid={other.accountid}"
    assert_error(user.post(path, data=BODY), 404, "invalid-accountid")
    made = other.post(path, data=BODY).json
    assert made["appid"] == other.appid
    path = f"/api/user/update-profile?profileid={made['profileid']}"
    assert_error(user.patch(path, data=BODY), 404, "invalid-profileid")
    assert other.get("/api/administrator/profiles").json == [made]
    assert administrator.get("/api/administrator/profiles").json == [profile]
    assert len(other.get("/api/administrator/sessions").json) == 1
    query = f"accountid={user.accountid}"
    assert other.get(f"/api/administrator/profiles?{query}").json is None
    assert other.get(f"/api/administrator/sessions?{query}").json is None
    elsewhere = {"X-Appid": other.appid}  # with the token of this application
    response = administrator.get("/api/administrator/profiles", headers=elsewhere)
    assert_error(response, 401, "sign-in-required")


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_is_simple_or_multipart(user, content_type):
    path = f"/api/user/create-profile?accountid={user.accountid}"
    made = user.post(path, data=BODY, content_type=content_type).json
    path = f"/api/user/update-profile?profileid={made['profileid']}"
    updated = user.patch(path, data=CHANGED, content_type=content_type).json
    assert made["phone"] == "+44 20 7946 0958"
    assert updated["phone"] == "112"


def test_each_operation_is_callable_in_process(user, administrator):
    """The errors they raise are proven with each rule below: see ``raises``."""
    made = create_profile(user.caller, user.accountid, BODY)
    updated = update_profile(user.caller, made["profileid"], CHANGED)
    assert updated["phone"] == "112"
    assert list_profiles(administrator.caller) == [updated]
    assert administrator.get("/api/administrator/profiles").json == [updated]
    sessions = list_sessions(administrator.caller)
    assert sessions == administrator.get("/api/administrator/sessions").json
    with raises("invalid-phone"):  # every field is a string
        update_profile(user.caller, made["profileid"], {**BODY, "phone": 112})


# Resources and their fields


def test_profile_has_the_properties_of_the_table(user):
    """Each field is stored under its property. No other property, such as a state."""
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
        assert re.fullmatch(MOMENT, session[name])


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


def test_update_ignores_fields_that_are_not_configured(make_app, user, profile):
    """A configured field is required; otherwise it is neither required nor changed."""
    phone_only = make_app(APPID=user.appid, USER_PROFILE_FIELDS="phone")
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    body = {"phone": "112", "location": "Paris", "full-name": ""}
    updated = phone_only.test_client().patch(path, data=body, headers=user.headers).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}


@pytest.mark.parametrize(
    "path", ["/api/user/update-profile", "/api/user/update-profile?profileid="]
)
def test_update_rule_1_without_a_profileid(user, profile, path):
    """When the query has no ``profileid``, then error ``invalid-profileid``."""
    body = {**BODY, "profileid": profile["profileid"]}  # one in the body does not count
    assert_error(user.patch(path, data=body), 400, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, None, BODY)


def test_update_rule_2_an_unknown_profile(user):
    """When the profile cannot be found, then error ``invalid-profileid``."""
    path = "/api/user/update-profile?profileid=prof_0123456789abcdef"
    assert_error(user.patch(path, data=BODY), 404, "invalid-profileid")
    with raises("invalid-profileid"):
        update_profile(user.caller, "prof_0123456789abcdef", BODY)


def test_update_rule_3_a_profile_of_another_account(another, administrator, profile):
    """The caller may not access the profile: ``invalid-account``, nothing is stored."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    assert_error(another.patch(path, data=CHANGED), 403, "invalid-account")
    with raises("invalid-account"):
        update_profile(another.caller, profile["profileid"], CHANGED)
    assert list_profiles(administrator.caller) == [profile]


TOO_SHORT = {**BODY, "company-name": "1234", "full-name": None}
first_failure = pytest.mark.parametrize(
    "body, code",
    [
        ({"website": "w"}, "invalid-location"),
        (TOO_SHORT, "invalid-company-name-length"),
    ],
)


@first_failure
def test_update_rule_4_first_failure_counts(user, administrator, profile, body, code):
    """First in configured order: website, location, and so on. Nothing is stored."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    assert_error(user.patch(path, data=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)
    assert list_profiles(administrator.caller) == [profile]


# Rules 5 to 11: the field, what is sent, and the code. Each field must be present and
# non-empty. None: a form leaves the field out; in this process the value is None.
REFUSED = {
    f"rules 5 to 11: {kind} {field}": (field, text, f"invalid-{field}")
    for field in BODY
    for kind, text in {"missing": None, "empty": ""}.items()
} | {
    # Rules 5 to 7: of at least the minimum and at most the maximum of characters.
    "rule 5: too short": ("full-name", "12", "invalid-full-name-length"),
    "rule 5: too long": ("full-name", "1234567", "invalid-full-name-length"),
    "rule 6: too short": ("display-name", "123", "invalid-display-name-length"),
    "rule 6: too long": ("display-name", "12345678", "invalid-display-name-length"),
    "rule 7: too short": ("company-name", "1234", "invalid-company-name-length"),
    "rule 7: too long": ("company-name", "123456789", "invalid-company-name-length"),
    # Rules 8 and 9: with an @ that is not the first character.
    "rule 8: without @": ("contact-email", "ada", "invalid-contact-email"),
    "rule 8: @ is first": ("contact-email", "@example", "invalid-contact-email"),
    "rule 9: without @": ("display-email", "ada", "invalid-display-email"),
    "rule 9: @ is first": ("display-email", "@example", "invalid-display-email"),
    # Rule 10: a date.
    "rule 10: not a date": ("dob", "abc", "invalid-dob"),
    "rule 10: not a real date": ("dob", "1950-02-30", "invalid-dob"),
}


@pytest.mark.parametrize("field, text, code", REFUSED.values(), ids=REFUSED)
def test_update_rules_5_to_11_what_is_refused(user, profile, field, text, code):
    """The code of each rule. The id of a failed test names the rule."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    body = {**BODY, field: text}
    assert_error(user.patch(path, data=body), 400, code)
    with raises(code):
        update_profile(user.caller, profile["profileid"], body)


# Rules 5 to 11: the field, what is sent, the property, and its value.
STORED = {
    "rule 5: shortest": ("full-name", "123", "fullName", "123"),
    "rule 5: longest": ("full-name", "123456", "fullName", "123456"),
    "rule 5: characters, not bytes": ("full-name", "éééééé", "fullName", "éééééé"),
    "rule 6: shortest": ("display-name", "1234", "displayName", "1234"),
    "rule 6: longest": ("display-name", "1234567", "displayName", "1234567"),
    "rule 7: shortest": ("company-name", "12345", "companyName", "12345"),
    "rule 7: longest": ("company-name", "12345678", "companyName", "12345678"),
    "rule 10": ("dob", "February 1, 1950", "dob", "1950-02-01"),
    "rule 11: phone": ("phone", "112", "phone", "112"),
    "rule 11: occupation": ("occupation", "Poet", "occupation", "Poet"),
    "rule 11: location": ("location", "Paris", "location", "Paris"),
    "rule 11: website": ("website", "w", "website", "w"),
}
# Create refuses these two: its rule 4.
UPDATED = STORED | {
    "rule 8": ("contact-email", "a@", "contactEmail", "a@"),
    "rule 9": ("display-email", "a@", "displayEmail", "a@"),
}


@pytest.mark.parametrize("field, text, property, value", UPDATED.values(), ids=UPDATED)
def test_update_rules_5_to_11_what_is_stored(
    user, administrator, profile, field, text, property, value
):
    """Each field is stored under its property; the response has the new values."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    response = user.patch(path, data={**BODY, field: text})
    updated_at = response.json["updatedAt"]
    assert response.status_code == 200
    assert response.json == profile | {property: value, "updatedAt": updated_at}
    assert re.fullmatch(MOMENT, updated_at)
    assert updated_at >= profile["updatedAt"]
    assert list_profiles(administrator.caller) == [response.json]


def test_update_rule_12_the_stored_profile_is_updated(user, administrator, profile):
    """No other profile is changed. Cached copies of it are discarded."""
    # "Only the validated fields": test_update_ignores_fields_that_are_not_configured.
    path = f"/api/user/create-profile?accountid={user.accountid}"
    second = user.post(path, data=BODY).json
    assert administrator.get("/api/administrator/profiles").json == [second, profile]
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    updated = user.patch(path, data=CHANGED).json
    assert updated == profile | {"phone": "112", "updatedAt": updated["updatedAt"]}
    assert administrator.get("/api/administrator/profiles").json == [second, updated]


def test_update_rule_13_a_missing_body_is_an_empty_one(user, profile):
    """A missing body is treated as an empty body."""
    path = f"/api/user/update-profile?profileid={profile['profileid']}"
    assert_error(user.patch(path), 400, "invalid-website")
    with raises("invalid-website"):
        update_profile(user.caller, profile["profileid"], None)


# Endpoints: POST /api/user/create-profile?accountid=<account_id>


def test_create_with_default_true(user):
    """The new profile becomes the account's default."""
    # The account's ``profileid`` is set to that of the profile.
    path = f"/api/user/create-profile?accountid={user.accountid}"
    body = {**BODY, "default": "true"}
    first = user.post(path, data=body).json
    assert user.caller.profileid == first["profileid"]
    second = create_profile(user.caller, user.accountid, body)
    assert user.caller.profileid == second["profileid"]


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
    body = {**BODY, "accountid": user.accountid}  # one in the body does not count
    assert_error(user.post(path, data=body), 400, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, None, BODY)


def test_create_rule_2_an_unknown_account(user):
    """When the account cannot be found, then ``invalid-accountid``."""
    path = "/api/user/create-profile?accountid=acct_0123456789abcdef"
    assert_error(user.post(path, data=BODY), 404, "invalid-accountid")
    with raises("invalid-accountid"):
        create_profile(user.caller, "acct_0123456789abcdef", BODY)


def test_create_rule_3_an_account_of_another_user(user, another, administrator):
    """The caller may not access the account: ``invalid-account``, nothing is stored."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    assert_error(another.post(path, data=BODY), 403, "invalid-account")
    with raises("invalid-account"):
        create_profile(another.caller, user.accountid, BODY)
    assert administrator.get("/api/administrator/profiles").data == b"null\n"


@first_failure
def test_create_rule_4_first_failure_counts(user, administrator, body, code):
    """Update's rule 4: the first in configured order. Nothing is stored."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    assert_error(user.post(path, data=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)
    assert list_profiles(administrator.caller) is None


# Update's rules 5 to 11, with one difference: an address must also be valid.
NOT_CREATED = REFUSED | {
    "rule 4: contact": ("contact-email", "ada@example", "invalid-contact-email"),
    "rule 4: display": ("display-email", "ada@example", "invalid-display-email"),
}


@pytest.mark.parametrize("field, text, code", NOT_CREATED.values(), ids=NOT_CREATED)
def test_create_rule_4_what_is_refused(user, field, text, code):
    """The code of each rule. The id of a failed test names the rule."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    body = {**BODY, field: text}
    assert_error(user.post(path, data=body), 400, code)
    with raises(code):
        create_profile(user.caller, user.accountid, body)


@pytest.mark.parametrize("field, text, property, value", STORED.values(), ids=STORED)
def test_create_rule_4_what_is_stored(
    user, administrator, field, text, property, value
):
    """Update's rules 5 to 11. Each field is stored under its property."""
    path = f"/api/user/create-profile?accountid={user.accountid}"
    made = user.post(path, data={**BODY, field: text}).json
    assert made[property] == value
    assert list_profiles(administrator.caller) == [made]


def test_create_rule_5_the_stored_profile_is_returned(user, administrator, profile):
    """As read back, with the given ``accountid`` and the application id."""
    assert profile["accountid"] == user.accountid
    assert profile["appid"] == user.appid
    assert administrator.get("/api/administrator/profiles").json == [profile]


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
        ("", 0, 2),  # the defaults: PAGE_SIZE and 0
        ("?limit=3", 0, 3),
        ("?offset=1", 1, 3),
        ("?limit=1&offset=1", 1, 2),
        ("?all=false&limit=1&offset=1", 0, 4),  # not empty, so it counts
        ("?all=&limit=1&offset=1", 1, 2),
    ],
)
# Of four rows, these queries match none.
none_matches = pytest.mark.parametrize(
    "query", [{"accountid": "acct_0123456789abcdef"}, {"offset": 4}]
)


def test_sessions_of_one_account(administrator, sessions):
    """The query's ``accountid``: restrict to sessions of this account."""
    session = sessions[1]
    accountid = session["accountid"]
    path = f"/api/administrator/sessions?accountid={accountid}"
    assert administrator.get(path).json == [session]
    assert administrator.get(f"{path}&all=true").json == [session]
    assert list_sessions(administrator.caller, accountid=accountid) == [session]


def test_sessions_rule_1_newest_first(administrator, sessions):
    """Sessions are ordered by ``createdAt``, newest first."""
    found = administrator.get("/api/administrator/sessions?all=true").json
    assert found == sessions
    assert list_sessions(administrator.caller, all=True) == sessions


@pages
def test_sessions_rule_2_a_slice(administrator, sessions, query, start, end):
    """At most ``limit`` from ``offset``; a non-empty ``all`` returns every row."""
    response = administrator.get(f"/api/administrator/sessions{query}")
    assert response.status_code == 200
    assert response.json == sessions[start:end]


@none_matches
def test_sessions_rule_3_null_when_none_matches(administrator, sessions, query):
    """When no session matches, the result is null rather than an empty array."""
    response = administrator.get("/api/administrator/sessions", query_string=query)
    assert response.data == b"null\n"
    assert list_sessions(administrator.caller, **query) is None


def test_sessions_rule_4_token_hash_is_redacted(administrator):
    """Each element is a session object with ``tokenHash`` redacted."""
    (session,) = administrator.get("/api/administrator/sessions?all=true").json
    assert session["object"] == "session"
    assert "tokenHash" not in session
    assert list_sessions(administrator.caller) == [session]


# Endpoints: GET /api/administrator/profiles


@pytest.fixture
def profiles(user, administrator):
    """Newest first: the user's, the administrator's, two more of the user's."""
    made = []
    for owner in (user, user, administrator, user):
        path = f"/api/user/create-profile?accountid={owner.accountid}"
        made.append(owner.post(path, data=BODY).json)
    return made[::-1]


def test_profiles_of_one_account(user, administrator, profiles):
    """The query's ``accountid``: restrict to profiles of this account."""
    own = profiles[:1] + profiles[2:]
    path = f"/api/administrator/profiles?accountid={user.accountid}"
    assert administrator.get(path).json == own[:2]
    assert administrator.get(f"{path}&all=true").json == own
    query = {"accountid": user.accountid, "limit": 1, "offset": 1}
    assert list_profiles(administrator.caller, **query) == [profiles[2]]


def test_profiles_rule_1_newest_first(user, administrator, profiles):
    """Profiles are ordered by ``createdAt``, newest first; an update moves none."""
    profiles[3] = update_profile(user.caller, profiles[3]["profileid"], BODY)
    found = administrator.get("/api/administrator/profiles?all=true").json
    assert found == profiles
    assert list_profiles(administrator.caller, all=True) == profiles


@pages
def test_profiles_rule_2_a_slice(administrator, profiles, query, start, end):
    """At most ``limit`` from ``offset``; a non-empty ``all`` returns every row."""
    response = administrator.get(f"/api/administrator/profiles{query}")
    assert response.status_code == 200
    assert response.json == profiles[start:end]


@none_matches
def test_profiles_rule_3_null_when_none_matches(administrator, profiles, query):
    """When no profile matches, the result is null rather than an empty array."""
    response = administrator.get("/api/administrator/profiles", query_string=query)
    assert response.data == b"null\n"
    assert list_profiles(administrator.caller, **query) is None


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
    """Without a token, or with a wrong one, a request is refused."""
    assert_error(client.open(path, method=method), 401, "sign-in-required")
    wrong = {"Authorization": f"Bearer {'0' * 64}"}
    response = client.open(path, method=method, headers=wrong)
    assert_error(response, 401, "sign-in-required")


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
#   test_update_ignores_fields_that_are_not_configured for update.
# - The six lengths: rules 5 to 7 of REFUSED and STORED. PAGE_SIZE: ``pages``, first.


def test_user_profile_fields_of_one_call(make_app, user, profile):
    """``userProfileFields``, in this process: a list that replaces the setting."""
    phone_only = make_app(APPID=user.appid, USER_PROFILE_FIELDS="phone")
    options = {"user_profile_fields": ["location"]}
    body = {"phone": "112", "location": "Paris"}
    with phone_only.app_context():
        made = create_profile(user.caller, user.accountid, body, **options)
        updated = update_profile(user.caller, profile["profileid"], body, **options)
        with raises("invalid-location"):
            create_profile(user.caller, user.accountid, {}, **options)
    assert made["phone"] is None
    assert made["location"] == "Paris"
    assert updated == profile | {"location": "Paris", "updatedAt": updated["updatedAt"]}
    path = f"/api/user/create-profile?accountid={user.accountid}"
    body["userProfileFields"] = "phone"  # does nothing in a body
    assert_error(user.post(path, data=body), 400, "invalid-website")
