"""Two updates of a profile: both are stored, or the later one is a 412 if asked for."""

from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from service import UPDATE, assert_error, at_once, named, on_mysql

import models
import rows
from database import db
from errors import ServiceError
from profiles import find_own_profile, update_profile

PROFILE = "/api/user/profile"
OLD = "2026-11-24T09:30:00.123Z"  # which no profile has as its updatedAt
ADA = named("Ada")


@pytest.fixture
def profile(user):
    return user.create(ADA).json


@pytest.fixture
def store(app, user, profile):
    """Stores fields of the profile, and no others."""

    def store(if_match=None, **fields):
        with app.app_context():
            return update_profile(
                user.caller,
                profile["profileid"],
                fields,
                user_profile_fields=[*fields],
                if_match=if_match,
            )

    return store


@pytest.fixture
def meanwhile(monkeypatch):
    """Makes a call after the next update's read of the profile, before its write."""

    replace_profile = rows.replace_profile

    def arrange(call):
        def replace_after_call(*args):
            monkeypatch.setattr(rows, "replace_profile", replace_profile)
            at_once(call)
            return replace_profile(*args)

        monkeypatch.setattr(rows, "replace_profile", replace_after_call)

    return arrange


def test_each_of_many_updates_at_once_returns_what_it_sent(user, profile):
    """No two return the same version, and the last version is stored."""

    def update(thread):
        names = [f"{thread}.{turn}" for turn in range(50)]
        update = partial(user.update, profile["profileid"])
        return [(name, update(named(name)).json) for name in names]

    updates = [pair for pairs in at_once(*runs(update)) for pair in pairs]
    assert all(name == returned["fullName"] for name, returned in updates)
    versions = {returned["updatedAt"]: returned for _, returned in updates}
    assert len(versions) == 200
    newest = versions[max(versions)]
    assert find_own_profile(user.caller, profile["profileid"]) == newest


def runs(function):
    """Calls of a function with the number of their thread, for four threads."""
    return [partial(function, thread) for thread in range(4)]


def test_an_update_of_a_profile_that_is_deleted_meanwhile(
    user, profile, store, meanwhile
):
    path = f"/api/user/delete-profile?profileid={profile['profileid']}"
    meanwhile(partial(user.delete, path))
    with pytest.raises(ServiceError, match="^invalid-profileid$"):
        store(phone="1")


def test_an_update_returns_what_another_one_stored_meanwhile(store, meanwhile):
    meanwhile(partial(store, website="https://example.com"))
    assert store(phone="1")["website"] == "https://example.com"


@on_mysql
def test_an_update_in_a_transaction_that_has_read(user, profile, store):
    """What it read before does not show the other update."""
    with db.atomic():
        assert find_own_profile(user.caller, profile["profileid"]) == profile
        (other,) = at_once(partial(store, website="https://example.com"))
        with pytest.raises(ServiceError, match="^profile-changed$"):
            store(phone="1", if_match=profile["updatedAt"])
        assert store(website="https://example.com", if_match=OLD) == other
        updated = store(phone="1")
    assert (updated["website"], updated["phone"]) == ("https://example.com", "1")
    assert find_own_profile(user.caller, profile["profileid"]) == updated


def test_each_update_has_a_later_updated_at(profile, store, monkeypatch):
    """Also in one millisecond, and after the clock was set back."""
    # Patched since no clock stands still for two updates: it is 2096.
    monkeypatch.setattr(models, "latest", 4 * 10**18)
    stamps = [store(phone="1")["updatedAt"] for _ in range(3)]
    monkeypatch.setattr(models, "latest", 0)
    stamps.append(store(phone="1")["updatedAt"])
    begin = "2096-10-02T07:06:40.00"
    assert stamps == [f"{begin}{n}Z" for n in range(4)]


def test_the_entity_tag_is_updated_at(user):
    created = user.create(ADA)
    path = f"?profileid={created.json['profileid']}"
    updated = user.patch(UPDATE + path, data=ADA)
    read = user.get(PROFILE + path)
    for response in (created, updated, read):
        assert response.headers["ETag"] == f'"{response.json["updatedAt"]}"'
    assert read.json == updated.json


@pytest.mark.parametrize(
    "header, status",
    [
        ('"{}"', 200),
        (' "{}" ', 200),
        (f'"{OLD}", "{{}}"', 200),
        (f'"{{}}","{OLD}"', 200),
        ("*", 200),
        ('"{offset}"', 200),
        ('"{basic}"', 200),
        ('"{elsewhere}"', 200),
        ('"{comma}"', 200),
        ('"{lower}"', 200),
        ('"{local}"', 412),
        ('"0001-01-01T00:00:00+14:00"', 412),
        (f'"{OLD}"', 412),
        ('W/"{}"', 412),
        ("{}", 412),
        ('"{}', 412),
        ('"*"', 412),
        ("", 412),
    ],
)
def test_if_match(user, profile, header, status):
    """It is compared as RFC 9110 says. After a 412, nothing is stored.

    Each tag is a moment, because generated clients parse it, and write another form.
    """
    updated_at = profile["updatedAt"]
    moment = datetime.fromisoformat(updated_at)
    forms = {
        "offset": updated_at.replace("Z", "000+00:00"),
        "basic": updated_at.replace("-", "").replace(":", "").replace("Z", "9+0000"),
        "elsewhere": moment.astimezone(timezone(timedelta(hours=-3))).isoformat(),
        "comma": updated_at.replace(".", ","),
        "lower": updated_at.lower(),
        "local": updated_at.removesuffix("Z"),
    }
    headers = {"If-Match": header.format(updated_at, **forms)}
    body = named("Grace")
    response = user.update(profile["profileid"], body, headers=headers)
    found = find_own_profile(user.caller, profile["profileid"])
    if status == 200:
        assert response.json == found
        assert found["fullName"] == "Grace"
    else:
        assert_error(response, 412, "profile-changed")
        assert found == profile


@pytest.mark.parametrize(
    "if_match",
    [OLD, [OLD], [], "", f'"{OLD}"', ["é"], [None], [5]],
)
def test_if_match_in_this_process(profile, store, if_match):
    """It is an ``updatedAt``, or several."""
    with pytest.raises(ServiceError, match="^profile-changed$"):
        store(phone="1", if_match=if_match)
    updated = store(phone="1", if_match=profile["updatedAt"])
    assert store(phone="2", if_match=(OLD, updated["updatedAt"]))["phone"] == "2"


def test_an_update_that_is_sent_again_does_not_meet_its_own_change(user, profile):
    """Unless another one followed."""
    profileid = profile["profileid"]
    headers = {"If-Match": f'"{profile["updatedAt"]}"'}
    send = partial(user.update, profileid, named("Grace"), headers=headers)
    first = send()
    assert send().json == first.json
    assert find_own_profile(user.caller, profileid) == first.json
    user.update(profileid, named("Ada"))
    assert_error(send(), 412, "profile-changed")
