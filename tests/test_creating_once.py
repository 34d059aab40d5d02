"""A create-profile with an Idempotency-Key: sent again, it is stored once."""

from functools import partial
from hashlib import sha256

import pytest
from service import assert_error, at_once, named, repeating

from database import db
from errors import ServiceError
from models import Profile
from profiles import create_profile

ADA = named("Ada")
KEY = {"Idempotency-Key": "key"}
DELETION = "/api/user/delete-profile"


def test_create_profile_repeated_with_its_key_changes_nothing(user, administrator):
    first = user.create(named("first", default="true"), headers=KEY)
    second = user.create(named("second", default="true"))
    again = user.create(named("again", default="true"), headers=KEY)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json == first.json
    assert again.headers["ETag"] == first.headers["ETag"]
    assert administrator.profiles() == [second.json, first.json]
    assert user.caller.profileid == second.json["profileid"]


def test_a_key_keeps_the_profile_as_it_is_now_but_no_error(user, administrator):
    """The values of a repeat are checked, although they are not stored."""
    assert_error(user.create(headers=KEY), 400, "invalid-contact-email")
    first = user.create(ADA, headers=KEY)
    updated = user.update(first.json["profileid"], named("Bob"))
    assert user.create(ADA, headers=KEY).json == updated.json
    assert_error(user.create(headers=KEY), 400, "invalid-contact-email")
    assert administrator.profiles() == [updated.json]


def test_the_profileid_is_made_of_application_account_and_key(user):
    """It is the same in each process and version, and in Python."""
    key = "~ Key " + "x" * 249
    response = user.create(ADA, headers={"Idempotency-Key": key})
    digest = sha256(f"{user.appid} {user.accountid} {key}".encode()).hexdigest()
    assert response.json["profileid"] == f"prof_{digest[:16]}"
    again = create_profile(user.caller, user.accountid, ADA, idempotency_key=key)
    assert again == response.json


@pytest.mark.parametrize("default", ["", "true"])
def test_create_profile_several_times_at_once_stores_one(user, administrator, default):
    bodies = [named(name, default=default) for name in "abcdefgh"]
    calls = [partial(user.create, body, headers=KEY) for body in bodies]
    responses = at_once(*calls)
    assert sorted(each.status_code for each in responses) == [200] * 7 + [201]
    first, *others = [response.json for response in responses]
    assert others == [first] * 7
    assert administrator.profiles() == [first]
    expected = first["profileid"] if default else None
    assert user.caller.profileid == expected


@pytest.mark.parametrize(
    "key", ["", " a", "a ", "x" * 256, "a\tb", "a\n", "\x7f", "é", b"x", 1]
)
def test_a_key_of_other_characters_or_length_is_refused(user, key):
    with pytest.raises(ServiceError, match="^invalid-idempotency-key$"):
        create_profile(user.caller, user.accountid, ADA, idempotency_key=key)


def test_a_key_answers_with_no_profile_of_another(user, administrator):
    """Two keys with one hash, as somebody may find them."""
    made = user.create(ADA, headers=KEY).json
    taken = {"accountid": administrator.accountid}
    of_user = Profile.profileid == made["profileid"]
    Profile.update(taken).where(of_user).execute()
    response = user.create(ADA, headers=KEY)
    assert_error(response, 400, "invalid-idempotency-key")


def test_create_profile_with_a_key_beside_deletions_makes_it_anew(user):
    create = partial(user.create, ADA, headers=KEY)
    path = f"{DELETION}?profileid={create().json['profileid']}"
    delete = partial(user.delete, path)
    with repeating(delete, delete):
        for _ in range(60):
            assert create().status_code in (200, 201)


@pytest.mark.parametrize("headers", [KEY, {}], ids=["key", "no key"])
def test_a_create_whose_insert_was_resent_is_new(
    user, administrator, monkeypatch, headers
):
    """As after a lost connection. Its repeat is not new."""
    execute_sql = db.execute_sql

    def resend(sql, params=None):
        if sql.startswith("INSERT"):
            execute_sql(sql, params)
        return execute_sql(sql, params)

    with monkeypatch.context() as patch:
        patch.setattr(db.obj, "execute_sql", resend)
        created = user.create(ADA, headers=headers)
    assert created.status_code == 201
    assert administrator.profiles() == [created.json]
    repeated = user.create(ADA, headers=headers)
    assert repeated.status_code == (200 if headers else 201)
