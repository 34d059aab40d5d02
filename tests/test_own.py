"""A user's own: the account and its default, the profiles, the sessions."""

import re
import time
from functools import partial

import orjson
import pytest
from service import (
    PROFILES,
    SESSIONS,
    assert_error,
    at_once,
    fill,
    named,
    on_mysql,
    sign_in,
)

import rows
from accounts import delete_account, find_own_account
from callers import OPERATOR
from database import db
from errors import ServiceError
from models import Account, Profile, Session
from profiles import (
    delete_profile,
    list_own_profiles,
    set_default_profile,
)
from sessions import create_session, end_session, list_own_sessions

ACCOUNT = "/api/user/account"
PROFILE = "/api/user/profile"
OWN_PROFILES = "/api/user/profiles"
OWN_SESSIONS = "/api/user/sessions"
DEFAULT = "/api/user/set-default-profile"
DELETION = "/api/user/delete-profile"
END = "/api/user/end-session"
OLD = "2026-11-24T09:30:00.123Z"


@pytest.fixture(params=["ordinary", "administrator"])
def reader(app, request):
    """A client of an account with rows of its own, in an application with others."""
    sign_in(app).create(named("other"))
    return sign_in(app, administrator=request.param == "administrator")


def own(path, client):
    return f"{path}?accountid={client.accountid}"


def test_the_account_shows_its_default_profile(reader):
    account = reader.get(own(ACCOUNT, reader)).json
    assert account["profileid"] is account["profile"] is None
    made = reader.create(named("a", default="true")).json
    account = reader.get(own(ACCOUNT, reader)).json
    assert account["profileid"] == made["profileid"]
    assert [*account][-1] == "profile"
    assert account["profile"] == made
    assert reader.get(f"{PROFILE}?profileid={made['profileid']}").json == made


def test_list_own_profiles_of_the_account_alone(reader):
    path = own(OWN_PROFILES, reader)
    assert reader.get(path).data == b"null\n"
    assert list_own_profiles(reader.caller, reader.accountid) is None
    made = [reader.create(named(name)).json for name in "abc"][::-1]
    first = reader.get(f"{path}&limit=2&offset=0")
    assert first.json == made[:2]
    position = Profile.get(Profile.profileid == made[1]["profileid"]).id
    following = f"{path}&limit=2&after={position}"
    assert first.headers["Link"] == f'<{following}>; rel="next"'
    by_id = f"{path}&limit=2&after={made[1]['profileid']}"
    assert reader.get(by_id).json == made[2:]
    assert reader.head(f"{path}&limit=2").headers["Link"] == first.headers["Link"]
    assert reader.get(following).json == made[2:]
    assert reader.get(f"{path}&limit=0").data == b"null\n"


@pytest.mark.parametrize("more", ["", "&all=1"])
def test_a_cursor_is_a_row_of_this_listing(user, administrator, more):
    """Also of an administrator, who may name another's in the other listing."""
    another = user.create(named("a")).json["profileid"]
    path = f"{own(OWN_PROFILES, administrator)}&after={another}{more}"
    assert_error(administrator.get(path), 400, "invalid-after")


def next_page(client, page):
    return client.get(re.fullmatch('<(.+)>; rel="next"', page.headers["Link"])[1])


@pytest.mark.parametrize("limit", [101, 2**63 - 1, None])
@pytest.mark.parametrize(
    "model, list_own", [(Profile, list_own_profiles), (Session, list_own_sessions)]
)
def test_a_page_of_an_own_list_has_100_rows_at_most(make_app, model, list_own, limit):
    """Over HTTP, where a user could let the service read any number into memory."""
    app = make_app(PAGE_SIZE=101)
    user = sign_in(app)
    fill(model, user.appid, 102, accountid=user.accountid)
    with app.app_context():
        rows = list_own(user.caller, user.accountid, all=True)
        page = list_own(user.caller, user.accountid, limit=limit)
    assert page == rows[: limit or 101]
    path = own(f"/api/user/{model._meta.table_name}s", user)
    page = user.get(f"{path}&limit={limit or ''}")
    assert page.json == rows[:100]
    assert next_page(user, page).json == rows[100:]
    assert user.get(f"{path}&limit={limit}&all=1").json == rows
    assert_error(user.get(f"{path}&limit={2**63}"), 400, "invalid-limit")


@pytest.mark.parametrize(
    "text, counts",
    [
        pytest.param("x" * 65_000, [10, 15, 15], id="65-KB"),
        pytest.param("\1" * 200_000, [1, 1], id="longer-than-a-page-as-JSON"),
    ],
)
def test_a_page_of_long_own_rows_ends_at_a_megabyte(user, administrator, text, counts):
    """So what many slow clients of one user wait for fits into the memory."""
    fill(Profile, user.appid, sum(counts), accountid=user.accountid)
    Profile.update(location=text).where(Profile.appid == user.appid).execute()
    rows = list_own_profiles(user.caller, user.accountid, limit=100)
    path = own(OWN_PROFILES, user)
    pages = [user.get(f"{path}&limit=100")]
    while "Link" in pages[-1].headers:
        pages.append(next_page(user, pages[-1]))
    assert [len(page.json) for page in pages] == counts
    assert sum([page.json for page in pages], []) == rows
    chunks = [*user.get(f"{path}&all=1").iter_encoded()]
    assert [chunk.count(b'"updatedAt"') for chunk in chunks] == [*counts, 0]
    assert orjson.loads(b"".join(chunks)) == rows
    of_account = f"{PROFILES}?accountid={user.accountid}"
    assert administrator.get(f"{of_account}&limit=100").json == rows


def test_set_default_profile(reader):
    """Chosen again, it moves updatedAt again."""
    reader.create(named("a", default="true"))
    chosen = reader.create(named("b")).json
    account = reader.get(own(ACCOUNT, reader)).json
    for _ in range(2):
        before = account["updatedAt"]
        time.sleep(0.002)  # timestamps are to the millisecond
        response = reader.patch(f"{DEFAULT}?profileid={chosen['profileid']}")
        account = reader.get(own(ACCOUNT, reader)).json
        assert response.json == account
        assert account["updatedAt"] > before
        assert account["profile"] == chosen


@pytest.mark.parametrize("operation", [set_default_profile, delete_profile])
def test_a_profile_whose_account_was_just_deleted(user, monkeypatch, operation):
    """After the profile was read, and before the account is locked."""
    profileid = user.create(named("a")).json["profileid"]
    find_row = rows.find_row

    def find_no_account(model, *args, **options):
        return None if model is Account else find_row(model, *args, **options)

    monkeypatch.setattr(rows, "find_row", find_no_account)
    with pytest.raises(ServiceError, match="^invalid-profileid$") as caught:
        operation(user.caller, profileid)
    assert caught.value.status == 404


def test_delete_profile(reader):
    """The account is changed if this is its default profile, and only then."""
    default = reader.create(named("a", default="true")).json
    other = reader.create(named("b")).json
    account = find_own_account(reader.caller, reader.accountid)
    time.sleep(0.002)  # timestamps are to the millisecond
    assert reader.delete(f"{DELETION}?profileid={other['profileid']}").json == other
    assert find_own_account(reader.caller, reader.accountid) == account
    path = f"{DELETION}?profileid={default['profileid']}"
    assert reader.delete(path).json == default
    emptied = find_own_account(reader.caller, reader.accountid)
    assert emptied["updatedAt"] > account["updatedAt"]
    changes = {"profileid": None, "profile": None, "updatedAt": emptied["updatedAt"]}
    assert emptied == account | changes
    assert_error(reader.delete(path), 404, "invalid-profileid")


@pytest.mark.parametrize("operation", [set_default_profile, delete_profile])
def test_the_operator_changes_any_profile(user, operation):
    profile = user.create(named("a")).json
    result = operation(OPERATOR, profile["profileid"])
    assert profile in (result, result.get("profile"))


@pytest.mark.parametrize("operation", [set_default_profile, delete_profile])
def test_a_profile_whose_account_was_deleted_meanwhile(user, operation):
    """The profile is what the caller named, so its code is the error."""
    caller, profile = user.caller, user.create(named("a")).json
    delete_account(OPERATOR, user.accountid)
    with pytest.raises(ServiceError, match="^invalid-profileid$") as caught:
        operation(caller, profile["profileid"])
    assert caught.value.status == 404


def test_an_own_account_that_was_deleted(user, administrator):
    caller = user.caller
    path = f"/api/administrator/delete-account?accountid={user.accountid}"
    administrator.delete(path)
    with pytest.raises(ServiceError, match="^invalid-accountid$") as caught:
        find_own_account(caller, user.accountid)
    assert caught.value.status == 404


def test_list_own_sessions(reader):
    """Newest first, as /api/user/profiles lists profiles."""
    sign_in(reader.application)
    other = create_session(OPERATOR, reader.accountid, duration=60)
    del other["token"]
    path = own(OWN_SESSIONS, reader)
    newest = reader.get(f"{path}&limit=1")
    assert newest.json == [other]
    (first,) = reader.get(f"{path}&after={other['sessionid']}").json
    assert first["sessionid"] == reader.session["sessionid"]
    assert list_own_sessions(reader.caller, reader.accountid) == [other, first]


def ids(sessions):
    return [session["sessionid"] for session in sessions]


def test_active_sessions(user, administrator):
    """Those that neither ended nor expired, before the limit counts, in both lists."""
    started = [create_session(OPERATOR, user.accountid, duration=60) for _ in range(3)]
    running = [*ids(started[::-1]), user.session["sessionid"]]
    for _ in range(3):
        expired = create_session(OPERATOR, user.accountid)["sessionid"]
        Session.update(expiresAt=OLD).where(Session.sessionid == expired).execute()
        ended = create_session(OPERATOR, user.accountid, duration=60)
        user.patch(f"{END}?sessionid={ended['sessionid']}")
    reads = [
        partial(user.get, OWN_SESSIONS),
        partial(administrator.get, SESSIONS),
    ]
    for read in reads:
        query = {"accountid": user.accountid, "active": "false", "limit": 2}
        page = read(query_string=query)
        assert ids(page.json) == running[:2]
        assert "&active=false&limit=2&after=" in page.headers["Link"]


def test_end_session(user):
    """One of the account's own; ended again, it is as it was."""
    session = create_session(OPERATOR, user.accountid, duration=60)
    del session["token"]
    time.sleep(0.002)  # timestamps are to the millisecond
    path = f"{END}?sessionid={session['sessionid']}"
    ended = user.patch(path).json
    assert ended == session | {"ended": True, "updatedAt": ended["updatedAt"]}
    assert ended["updatedAt"] > session["updatedAt"]
    assert user.patch(path).json == ended


def test_end_session_refuses_a_misspelled_sessionid(user, administrator):
    """Otherwise the caller's own session would end."""
    for client in (user, administrator):
        response = client.patch(f"{END}?sessionID={user.session['sessionid']}")
        assert_error(response, 400, "invalid-parameter")
        assert response.json["errors"] == {"sessionID": "invalid-parameter"}
    assert user.get(OWN_SESSIONS, query_string={"accountid": user.accountid}).json


@pytest.mark.parametrize("query", ["", "?sessionid="])
def test_end_session_of_the_token_that_is_sent(user, query):
    ended = user.patch(END + query).json
    assert ended["sessionid"] == user.session["sessionid"]
    assert ended["ended"] is True
    assert_error(user.patch(END + query), 401, "sign-in-required", "ended")


@on_mysql
def test_end_session_in_a_transaction_that_has_read(user):
    """What it read before shows a running session."""
    sessionid = create_session(OPERATOR, user.accountid, duration=60)["sessionid"]
    with db.atomic():
        assert list_own_sessions(user.caller, user.accountid)
        (ended,) = at_once(partial(user.patch, f"{END}?sessionid={sessionid}"))
        assert end_session(user.caller, sessionid) == ended.json


def test_end_session_ends_no_session_of_another(app, user, administrator):
    others = sign_in(app), sign_in(app, appid="elsewhere")
    for sessionid, status, code in (
        ("sess_0123456789abcdef", 404, "invalid-sessionid"),
        (user.session["sessionid"].upper(), 404, "invalid-sessionid"),
        (others[1].session["sessionid"], 404, "invalid-sessionid"),
        (others[0].session["sessionid"], 403, "invalid-account"),
    ):
        assert_error(user.patch(f"{END}?sessionid={sessionid}"), status, code)
    for query in ("", f"?sessionid={administrator.session['sessionid']}"):
        assert_error(administrator.patch(END + query), 403, "invalid-account")
    for client in (user, administrator, *others):
        assert client.get(own(ACCOUNT, client)).status_code == 200


@pytest.mark.parametrize("sessionid", [None, ""])
def test_end_session_needs_a_sessionid_in_this_process(user, sessionid):
    with pytest.raises(ServiceError, match="^invalid-sessionid$") as caught:
        end_session(user.caller, sessionid)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "method, path, name",
    [
        ("GET", ACCOUNT, "accountid"),
        ("GET", OWN_PROFILES, "accountid"),
        ("GET", OWN_SESSIONS, "accountid"),
        ("GET", PROFILE, "profileid"),
        ("PATCH", DEFAULT, "profileid"),
        ("DELETE", DELETION, "profileid"),
    ],
)
def test_the_id_is_of_the_application_and_in_small_letters(
    app, user, method, path, name
):
    """test_pages.py has what else is checked, in its order."""
    elsewhere = sign_in(app, appid="elsewhere").create(named("a")).json
    own = user.create(named("a")).json
    for identifier in (elsewhere[name], own[name].upper()):
        query = {name: identifier}
        response = user.open(path, method=method, query_string=query)
        assert_error(response, 404, f"invalid-{name}")
