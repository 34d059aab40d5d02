"""Fields of the product's own: configured names that begin with x-."""

import json
import re
from functools import partial

import pytest
from service import (
    ROOT,
    at_once,
    close_connection,
    execute,
    named,
    new_database,
    run_python,
    sign_in,
    stored,
)

from callers import OPERATOR
from errors import ServiceError
from models import Profile
from profiles import create_profile, list_profiles, update_profile

ADDRESS = "x-postal-address"
VAT = "x-vat-id"
LONGEST = f"x-{'a' * 62}"
SETTINGS = {
    "USER_PROFILE_FIELDS": f"{ADDRESS},full-name",
    "OPTIONAL_PROFILE_FIELDS": f"phone,{VAT},{LONGEST}",
}
ADA = {"full-name": "Ada", ADDRESS: "1 Main Street\r\nZürich \U0001f600"}


@pytest.fixture
def app(make_app):
    app = make_app(**SETTINGS)
    with app.app_context():
        yield app


def test_a_profile_returns_them_in_their_order(user, administrator):
    body = {LONGEST: "b", VAT: "CHE-1", "phone": "7", **ADA}
    profile = user.create(body).json
    assert profile["fields"] == {ADDRESS: ADA[ADDRESS], VAT: "CHE-1", LONGEST: "b"}
    assert [*profile["fields"]] == [ADDRESS, VAT, LONGEST]
    assert [*profile][-3:] == ["fields", "createdAt", "updatedAt"]
    assert profile["phone"] == "7"
    assert administrator.profiles() == [profile]
    assert administrator.get("/api/administrator/profiles").json == [profile]
    path = f"/api/user/profile?profileid={profile['profileid']}"
    assert user.get(path).json == profile


@pytest.fixture
def run_sql(empty_database_url):
    """Runs statements of API with the names of two fields."""
    page = (ROOT / "docs" / "API.md").read_text()
    (block,) = re.findall("(?s)```sql\n(.*?)```", page)

    def run(old, new=None):
        text = block.replace("x-OLD", old).replace("x-NEW", new or "")
        renaming, deletion = text.split(";\n")[:2]
        for statement in ([renaming] if new else []) + [deletion]:
            execute(empty_database_url, statement)

    return run


def test_a_field_can_be_renamed(make_app, empty_database_url, run_sql):
    """What was already stored by the new name stays."""
    settings = {"OPTIONAL_PROFILE_FIELDS": f"phone,{VAT},{ADDRESS},x-new"}
    app = make_app(DATABASE_URL=empty_database_url, **settings)
    user = sign_in(app)
    text = ADA[ADDRESS] + ' "quoted" \\'
    for own in ({VAT: "1", ADDRESS: text}, {ADDRESS: "old", "x-new": "new"}, {}):
        user.create(named("Ada", **own))
    before = user.get(f"/api/user/profiles?accountid={user.accountid}").json
    run_sql(ADDRESS, "x-new")
    expected = [None, {"x-new": "new"}, {VAT: "1", "x-new": text}]
    for profile, fields in zip(before, expected, strict=True):
        profile["fields"] = fields
    assert user.get(f"/api/user/profiles?accountid={user.accountid}").json == before


def test_the_values_of_a_field_can_be_deleted(make_app, empty_database_url, run_sql):
    settings = {"OPTIONAL_PROFILE_FIELDS": f"{VAT},{ADDRESS}"}
    user = sign_in(make_app(DATABASE_URL=empty_database_url, **settings))
    for own in ({VAT: "1", ADDRESS: "2"}, {VAT: "1"}, {ADDRESS: f'"{VAT}"'}):
        user.create(named("Ada", **own))
    run_sql(VAT)
    profiles = user.get(f"/api/user/profiles?accountid={user.accountid}").json
    fields = [profile["fields"] for profile in profiles]
    assert fields == [{ADDRESS: f'"{VAT}"'}, None, {ADDRESS: "2"}]


def test_they_are_null_without_any(make_app):
    user = sign_in(make_app(OPTIONAL_PROFILE_FIELDS=VAT))
    for vat in ({}, {VAT: ""}):
        profile = user.create(named("Ada", **vat)).json
        assert profile["fields"] is None
    profileid = profile["profileid"]
    updated = user.update(profileid, named("Ada", **{VAT: "CHE-1"})).json
    assert updated["fields"] == {VAT: "CHE-1"}
    assert user.update(profileid, named("Ada")).json["fields"] == {VAT: "CHE-1"}
    emptied = user.update(profileid, json=named("Ada", **{VAT: None})).json
    assert emptied["fields"] is None


@pytest.mark.parametrize(
    "changes, errors",
    [
        ({ADDRESS: ""}, [f"invalid-{ADDRESS}"]),
        ({ADDRESS: None}, [f"invalid-{ADDRESS}"]),
        ({ADDRESS: 7}, [f"invalid-{ADDRESS}"]),
        ({ADDRESS: "a\0b"}, [f"invalid-{ADDRESS}"]),
        ({VAT: ["x"], ADDRESS: ""}, [f"invalid-{ADDRESS}", f"invalid-{VAT}"]),
        (
            {ADDRESS: "", "full-name": "", "phone": 1},
            [f"invalid-{ADDRESS}", "invalid-full-name", "invalid-phone"],
        ),
    ],
)
def test_they_are_checked_as_text_in_configured_order(user, changes, errors):
    profile = user.create(ADA).json
    for request in (user.create, partial(user.update, profile["profileid"])):
        response = request(json=ADA | changes)
        assert response.status_code == 400
        assert response.json["message"] == errors[0]
        assert [*response.json["errors"].values()] == errors
    path = f"/api/user/profiles?accountid={user.accountid}"
    assert user.get(path).json == [profile]


def test_an_update_changes_the_configured_ones_and_leaves_the_others(user):
    body = ADA | {VAT: "1"}
    profile = create_profile(
        user.caller, user.accountid, body, user_profile_fields=[VAT, ADDRESS]
    )
    assert [*profile["fields"]] == [VAT, ADDRESS]
    updated = update_profile(
        user.caller,
        profile["profileid"],
        {"x-new": "n", VAT: "2"},
        user_profile_fields=["x-new", VAT],
    )
    assert updated["fields"] == {VAT: "2", ADDRESS: ADA[ADDRESS], "x-new": "n"}
    assert [*updated["fields"]] == [VAT, ADDRESS, "x-new"]
    with pytest.raises(ServiceError, match="^invalid-x-Nope$"):
        create_profile(user.caller, user.accountid, ADA, user_profile_fields=["x-Nope"])


@pytest.mark.parametrize(
    "body, errors",
    [
        ({"x-new": "", VAT: 7}, {"x-new": "invalid-x-new", VAT: f"invalid-{VAT}"}),
        ({ADDRESS: "1"}, {"x-new": "invalid-x-new", VAT: f"invalid-{VAT}"}),
        ({"x-new": "n", VAT: "a\0b"}, {VAT: f"invalid-{VAT}"}),
    ],
    ids=["empty and a number", "missing", "NUL"],
)
def test_those_of_one_call_are_required(user, body, errors):
    """Whatever the settings say of them. Nothing is stored."""
    profile = user.create(ADA).json
    for write in (
        partial(create_profile, user.caller, user.accountid),
        partial(update_profile, user.caller, profile["profileid"]),
    ):
        with pytest.raises(ServiceError) as caught:
            write(body, user_profile_fields=["x-new", VAT])
        assert str(caught.value) == next(iter(errors.values()))
        assert caught.value.errors == errors
    assert list_profiles(OPERATOR) == [profile]


def test_two_updates_at_once_lose_neither(app, user):
    profileid = user.create(ADA).json["profileid"]

    def save(name):
        with app.app_context():
            for n in range(8):
                update_profile(
                    OPERATOR,
                    profileid,
                    {name: str(n)},
                    user_profile_fields=[name],
                )

    names = ["x-a", "x-b", "x-c", "x-d"]
    at_once(*[partial(save, name) for name in names])
    (profile,) = list_profiles(OPERATOR)
    assert profile["fields"] == {ADDRESS: ADA[ADDRESS], **dict.fromkeys(names, "7")}


def test_a_repeated_update_with_if_match_changes_nothing(user):
    old = user.create(ADA | {VAT: "1"}).json
    request = {
        "data": ADA | {VAT: "2"},
        "headers": {"If-Match": f'"{old["updatedAt"]}"'},
    }
    updated = user.update(old["profileid"], **request)
    assert updated.status_code == 200
    assert user.update(old["profileid"], **request).json == updated.json
    request["data"] = ADA | {VAT: "3"}
    assert user.update(old["profileid"], **request).status_code == 412


def test_a_repeated_update_after_a_change_by_sql(user):
    """MariaDB's JSON functions write the fields with spaces."""
    profile = user.create(ADA).json
    stored = json.dumps(profile["fields"], separators=(" , ", " : "))
    Profile.update(fields=stored).where(
        Profile.profileid == profile["profileid"]
    ).execute()
    headers = {"If-Match": '"2020-01-01T00:00:00.000Z"'}
    assert user.update(profile["profileid"], ADA, headers=headers).json == profile


def test_the_description_shows_them(app, user):
    client = app.test_client()
    document = client.get("/openapi.json").json
    schemas = document["components"]["schemas"]
    for body in ("CreateProfile", "UpdateProfile"):
        assert set(schemas[body]["required"]) == {ADDRESS, "full-name"}
        assert schemas[body]["properties"][ADDRESS]["type"] == "string"
        assert schemas[body]["properties"][VAT]["type"] == ["string", "null"]
    fields = schemas["Profile"]["properties"]["fields"]
    assert fields["type"] == ["object", "null"]
    assert [*fields["properties"]] == [ADDRESS, VAT, LONGEST]
    body = document["components"]["requestBodies"]["CreateProfile"]
    example = body["content"]["application/json"]["example"]
    assert example[ADDRESS] == "Postal address"
    assert user.create(json=example).json["fields"][ADDRESS] == "Postal address"
    create = document["paths"]["/api/user/create-profile"]["post"]
    assert f"`invalid-{ADDRESS}`" in create["responses"]["400"]["description"]


def test_a_table_of_the_version_before_gets_the_column(empty_database_url, make_app):
    app = make_app(DATABASE_URL=empty_database_url, APPID="default", **SETTINGS)
    user = sign_in(app)
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN fields")
    assert user.create(ADA).status_code == 503
    settings = {"DATABASE_URL": empty_database_url, **SETTINGS}
    done = run_python("-m", "flask", "init-db", cwd=ROOT, **settings)
    assert json.loads(done.stdout)["added"] == ["profile.fields"]
    assert user.create(ADA).json["fields"] == {ADDRESS: ADA[ADDRESS]}


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
def test_a_copy_there_and_back_is_identical(
    empty_database_url, make_app, tmp_path, kind
):
    app = make_app(DATABASE_URL=empty_database_url, APPID="default", **SETTINGS)
    sign_in(app).create(ADA | {VAT: "CHE-1"})
    close_connection()
    (tmp_path / "back").mkdir()
    with new_database(kind, tmp_path) as there:
        with new_database("sqlite", tmp_path / "back") as back:
            for source, target in ((empty_database_url, there), (there, back)):
                done = run_python(
                    "-m", "flask", "copy-database", target, DATABASE_URL=source
                )
                assert json.loads(done.stdout)["profiles"] == 1, done.stderr
            expected = stored(empty_database_url)["profile"]
            assert stored(there)["profile"] == expected
            assert stored(back)["profile"] == expected
