"""What a user reads: the own account, its profiles, one of them."""

from functools import partial
from types import SimpleNamespace

import pytest
from service import assert_error, at_once, fill, named, sign_in

from errors import ServiceError
from models import Profile
from operations import (
    delete_account,
    find_own_account,
    find_own_profile,
    list_own_profiles,
)

ACCOUNT = "/api/user/account"
PROFILE = "/api/user/profile"
PROFILES = "/api/user/profiles"
UNKNOWN = "acct_0123456789abcdef"


@pytest.fixture(params=["ordinary", "administrator"])
def reader(app, request):
    """A client of an account with rows of its own, in an application with others."""
    sign_in(app).create(named("other"))
    return sign_in(app, administrator=request.param == "administrator")


def own(path, client):
    return f"{path}?accountid={client.accountid}"


def test_the_account_shows_its_default_profile(reader):
    account = reader.get(own(ACCOUNT, reader))
    assert account.status_code == 200
    assert account.json["profileid"] is None
    made = reader.create(named("a", default="true")).json
    account = reader.get(own(ACCOUNT, reader)).json
    assert account["profileid"] == made["profileid"]
    assert account == find_own_account(reader.caller, reader.accountid)
    shown = reader.get(f"{PROFILE}?profileid={account['profileid']}")
    assert shown.status_code == 200
    assert shown.json == made == find_own_profile(reader.caller, made["profileid"])


def test_the_profiles_of_the_account_alone_are_listed(reader):
    path = own(PROFILES, reader)
    assert reader.get(path).data == b"null\n"
    assert list_own_profiles(reader.caller, reader.accountid) is None
    made = [reader.create(named(name)).json for name in "abc"][::-1]
    first = reader.get(f"{path}&limit=2")
    assert first.status_code == 200
    assert first.json == made[:2]
    following = f"{path}&limit=2&after={made[1]['profileid']}"
    assert first.headers["Link"] == f'<{following}>; rel="next"'
    assert reader.get(following).json == made[2:]
    assert reader.get(f"{path}&limit=0").data == b"null\n"
    query = {"limit": 1, "offset": 1}
    found = list_own_profiles(reader.caller, reader.accountid, **query)
    assert found == made[1:2]


def test_a_profile_made_between_two_pages_is_not_missed_or_repeated(user):
    made = [user.create(named(name)).json for name in "abc"][::-1]
    path = f"{own(PROFILES, user)}&limit=2"
    following = user.get(path).headers["Link"].partition(">")[0].lstrip("<")
    newest = user.create(named("d")).json
    assert user.get(following).json == made[2:]
    assert user.get(path).json == [newest, made[0]]


def test_a_cursor_is_a_row_of_this_listing(user, administrator):
    """Also of an administrator, who may name another's in the other listing."""
    another = user.create(named("a")).json["profileid"]
    path = own(PROFILES, administrator)
    for after in (another, "prof_0123456789abcdef", "x"):
        for more in ("", "&all=1"):
            response = administrator.get(f"{path}&after={after}{more}")
            assert_error(response, 400, "invalid-after")


@pytest.mark.parametrize("path", [ACCOUNT, PROFILES])
def test_the_account_is_checked_before_the_query(app, user, administrator, path):
    """Missing, unknown, of another application, another's."""
    elsewhere = sign_in(app, appid="elsewhere")
    for client, another in ((user, administrator), (administrator, user)):
        get = partial(client.get, path)
        assert_error(get(query_string={"limit": "x"}), 400, "invalid-accountid")
        for accountid in (UNKNOWN, elsewhere.accountid, client.accountid.upper()):
            query = {"limit": "x", "accountid": accountid}
            assert_error(get(query_string=query), 404, "invalid-accountid")
        query = {"limit": "x", "accountid": another.accountid}
        assert_error(get(query_string=query), 403, "invalid-account")


def test_the_profile_is_checked(app, user, administrator):
    """Missing, unknown, of another application, another's."""
    elsewhere = sign_in(app, appid="elsewhere").create(named("a")).json["profileid"]
    assert_error(user.get(PROFILE), 400, "invalid-profileid")
    for profileid in ("prof_0123456789abcdef", elsewhere):
        path = f"{PROFILE}?profileid={profileid}"
        assert_error(user.get(path), 404, "invalid-profileid")
    profileid = user.create(named("a")).json["profileid"]
    path = f"{PROFILE}?profileid={profileid}"
    assert_error(administrator.get(path), 403, "invalid-account")


@pytest.mark.parametrize("path", [ACCOUNT, PROFILE, PROFILES])
def test_the_session_is_checked_first(app, client, user, path):
    """A token of another application does not count, with or without its name."""
    elsewhere = sign_in(app, appid="elsewhere")
    assert_error(client.get(path), 401, "sign-in-required")
    assert_error(
        user.get(path, headers={"X-Appid": "elsewhere"}), 401, "sign-in-required"
    )
    assert_error(
        elsewhere.get(path, headers={"X-Appid": user.appid}), 401, "sign-in-required"
    )
    assert_error(user.post(path), 405, "method-not-allowed")


def test_an_account_that_is_deleted_while_its_pages_are_read(user, administrator):
    for name in "ab":
        user.create(named(name))
    link = user.get(f"{own(PROFILES, user)}&limit=1").headers["Link"]
    delete_account(administrator.caller, user.accountid)
    following = link.partition(">")[0].lstrip("<")
    assert_error(user.get(following), 401, "sign-in-required")


def test_a_caller_without_an_appid_is_looked_up_in_that_of_the_call(user):
    profileid = user.create(named("a")).json["profileid"]
    caller = SimpleNamespace(accountid=user.accountid, administrator=False)
    assert find_own_account(caller, user.accountid)["appid"] == user.appid
    for operation, identifier, code in (
        (find_own_account, user.accountid, "invalid-accountid"),
        (list_own_profiles, user.accountid, "invalid-accountid"),
        (find_own_profile, profileid, "invalid-profileid"),
    ):
        with pytest.raises(ServiceError, match=f"^{code}$") as caught:
            operation(caller, identifier, appid="elsewhere")
        assert caught.value.status == 404


def test_eight_clients_read_at_once(user):
    rows = fill(Profile, user.appid, 30, accountid=user.accountid)
    read = partial(user.get, f"{own(PROFILES, user)}&all=1")
    for response in at_once(*[read] * 8):
        assert response.json == rows
