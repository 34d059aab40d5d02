"""HTTP: exact bodies, statuses and headers, every way a request can be wrong, creating once."""

import io
import json
import re
from functools import partial
from hashlib import sha256
from urllib.parse import quote

import pytest
from databases import default_profiles
from serving import (
    CREATE,
    FORM,
    PROFILES,
    SAFE,
    SESSIONS,
    UPDATE,
    Person,
    assert_error,
    at_once,
    named,
)

from database import connection, db, transaction
from errors import ServiceError
from models import Profile
from operations import create_profile, list_profiles

GOOD = {"contact-email": "ada@example.com", "full-name": "Ada"}
FOUR = [("PATCH", UPDATE), ("POST", CREATE), ("GET", PROFILES), ("GET", SESSIONS)]


def test_create_returns_the_whole_profile(user):
    response = user.create(GOOD)
    profile = response.json
    made = {name: profile[name] for name in ("profileid", "createdAt")}
    made |= {"object": "profile", "appid": user.appid, "accountid": user.accountid}
    made |= {
        "fullName": "Ada",
        "contactEmail": "ada@example.com",
        "updatedAt": made["createdAt"],
    }
    names = "profileid object appid accountid companyName fullName contactEmail displayEmail"
    names += (
        " displayName phone occupation location dob website fields createdAt updatedAt"
    )
    assert (response.status_code, list(profile)) == (201, names.split())
    assert profile == dict.fromkeys(profile) | made


def test_update_changes_the_configured_fields_alone(make_app):
    person = Person(make_app(USER_PROFILE_FIELDS="phone,full-name"))
    made = person.create({"phone": "1", "full-name": "Ada"}).json
    app = make_app(USER_PROFILE_FIELDS="full-name", APPID=person.appid)
    person.client, body = (
        app.test_client(),
        {"full-name": "Ada King", "phone": "2", "website": "w"},
    )
    response = person.update(made["profileid"], {**body, "accountid": "acct_"})
    updated = response.json["updatedAt"]
    assert (response.status_code, updated >= made["updatedAt"]) == (200, True)
    assert response.json == {**made, "fullName": "Ada King", "updatedAt": updated}


def test_bodies_of_each_kind(user):
    texts = ("application/json; charset=utf-8", "application/vnd.api+json")
    for body in (
        *(
            {"data": GOOD},
            {"data": GOOD, "content_type": "multipart/form-data"},
            {"json": GOOD},
        ),
        *({"data": json.dumps(GOOD), "content_type": each} for each in texts),
    ):
        made = user.create(**body)
        assert (made.status_code, made.json["fullName"]) == (201, "Ada")
        assert user.update(made.json["profileid"], **body).status_code == 200
    for content_type in (
        None,
        FORM,
        "multipart/form-data",
        "text/plain",
        "application/json",
    ):
        assert_error(
            user.create(b"", content_type=content_type), 400, "invalid-contact-email"
        )


PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
MULTIPART = PART % (b"contact-email", b"a@example.com") + PART[:-2] % (
    b"full-name",
    b"Ada",
)
TYPE = "multipart/form-data; boundary=x"
BROKEN = {
    (400, "invalid-body"): [
        *(
            ("application/json", text)
            for text in (b"{", b"[]", b"null", b'"text"', b"1", b"true")
        ),
        *(
            ("application/json", b'{"full-name": %b}' % text)
            for text in (b'"\xff"', b"NaN")
        ),
        *(
            ("application/json", b'{"x": %b}' % text)
            for text in (b"1e999", b'"\\ud800"')
        ),
        *(
            ("application/json", text)
            for text in (b'{"a":' * 9_000 + b"}" * 9_000, b"[" * 60_000)
        ),
        *((TYPE, MULTIPART + end) for end in (b"", b"\xff\r\n--x--\r\n")),
        *(
            (FORM, b"full-name=\xff"),
            (TYPE, MULTIPART[:60]),
            ("multipart/form-data", MULTIPART),
        ),
        ("multipart/form-data; boundary=\xe9", MULTIPART),
    ],
    (415, "unsupported-media-type"): [
        (each, b"full-name=Ada") for each in ("text/plain", "application/xml", None)
    ],
    (413, "body-too-large"): [
        *((each, b" " * 65_537) for each in ("application/json", TYPE, "text/plain")),
        (FORM, b"full-name=" + b"x" * 65_536),
    ],
}


@pytest.mark.parametrize("error", BROKEN)
def test_broken_bodies(user, administrator, error):
    """Whatever the target is."""
    profileid = administrator.create(GOOD).json["profileid"]
    for content_type, text in BROKEN[error]:
        for accountid in (user.accountid, "x", administrator.accountid):
            assert_error(
                user.create(text, accountid, content_type=content_type), *error
            )
        for target in ("", "x", profileid):
            assert_error(user.update(target, text, content_type=content_type), *error)
    assert [each["profileid"] for each in administrator.profiles()] == [profileid]


def test_a_body_shorter_than_it_says(user):
    text = io.BytesIO(b"contact-email=a@example.com&full-name=Ada")
    wire = {"wsgi.input": text, "wsgi.input_terminated": True, "CONTENT_LENGTH": "60"}
    assert_error(
        user.create(content_type=FORM, environ_overrides=wire), 400, "invalid-body"
    )
    wire["wsgi.input"].close()  # so that reading fails, as that of broken chunks does
    assert_error(
        user.create(content_type=FORM, environ_overrides=wire), 400, "invalid-body"
    )


def test_json_values_that_are_no_strings(user):
    for value in (None, True, False, 1, 1.5, [], ["Ada"], {}, {"a": "b"}):
        assert_error(
            user.create(json={**GOOD, "full-name": value}), 400, "invalid-full-name"
        )
        assert user.create(json={**GOOD, "phone": value}).json["phone"] is None
    made = [
        user.create(json={**GOOD, "default": value}).json
        for value in (1, True, False, None)
    ]
    assert default_profiles()[user.accountid] == made[1]["profileid"]


def test_a_body_of_exactly_the_limit_is_read_and_stored_whole(make_app):
    """Also one that is longer than a TEXT of MySQL."""
    settings = {"USER_PROFILE_FIELDS": "phone", "MAXIMUM_POST_DATA_LENGTH": 400_000}
    user = Person(make_app(**settings), administrator=True)
    phone = "👩" * 99_997 + "123456"
    made = user.create(f"phone={phone}".encode(), content_type=FORM).json
    assert_error(
        user.create(f"phone={phone}+".encode(), content_type=FORM),
        413,
        "body-too-large",
    )
    multipart = user.create(
        {"phone": phone[100:]}, content_type="multipart/form-data"
    ).json
    assert user.profiles() == [multipart, made]
    assert (multipart["phone"], made["phone"]) == (phone[100:], phone)


def test_a_file_is_ignored_and_as_many_parts_as_fit_are_read(user):
    body = {**GOOD, "phone": (io.BytesIO(b"\xff" * 1_000), "phone.bin")}
    made = user.create(body, content_type="multipart/form-data")
    assert (made.status_code, made.json["phone"]) == (201, None)
    text = PART % (b"a", b"") * 1_001 + MULTIPART + b"\r\n--x--\r\n"
    assert user.create(text, content_type=TYPE).status_code == 201


@pytest.mark.parametrize(("method", "path"), FOUR)
def test_sign_in_is_required_first(app, user, method, path):
    tokens = [
        "",
        "Bearer",
        f"Bearer {'0' * 64}",
        f"Basic {user.token}",
        f"Bearer {user.token}0",
    ]
    tokens += [
        f"Bearer {user.token.upper()}",
        user.token,
        "Bearer é",
        f"Bearer {user.token} x",
    ]
    for headers in ({}, *({"Authorization": token} for token in tokens)):
        wrong = {"query_string": "limit=x", "data": b"x" * 70_000}
        response = app.test_client().open(path, method=method, headers=headers, **wrong)
        assert_error(response, 401, "sign-in-required")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    user.headers["Authorization"] = f"bEARER  {user.token}"
    assert user.send(method, path).status_code != 401


def test_targets_that_are_missing_unknown_or_anothers(user, administrator):
    """They are refused before the fields. Identifiers are compared byte for byte."""
    made, own = administrator.create(GOOD).json, user.create(GOOD).json
    assert_error(user.update(made["profileid"], {}), 403, "invalid-account")
    assert_error(
        user.create({}, accountid=administrator.accountid), 403, "invalid-account"
    )
    for query in ("", "?profileid=&accountid="):
        assert_error(
            user.send("PATCH", UPDATE + query, data=GOOD), 400, "invalid-profileid"
        )
        assert_error(
            user.send("POST", CREATE + query, data=GOOD), 400, "invalid-accountid"
        )
    unknown = [
        "acct_0123456789abcdef",
        "prof_0123456789abcdef",
        "x",
        "é",
        "\x00",
        "' OR 1",
    ]
    for change in (str.upper, str.title, "{} ".format, " {}".format):
        unknown += [change(own["profileid"]), change(user.accountid)]
    for each in map(quote, unknown):
        assert_error(user.update(each, GOOD), 404, "invalid-profileid")
        assert_error(user.create(GOOD, accountid=each), 404, "invalid-accountid")
        assert administrator.get(f"{PROFILES}?accountid={each}").json is None
        assert_error(
            administrator.get(f"{PROFILES}?after={each}"), 400, "invalid-after"
        )
    assert administrator.profiles() == [own, made]


def test_the_request_names_its_application(app, user):
    upper, lower = Person(app, appid="Shop"), Person(app, appid="shop")
    made = upper.create(GOOD).json
    assert made["appid"] == "Shop"
    for headers in ({"X-Appid": "shop"}, {}):
        upper.headers = {"Authorization": upper.headers["Authorization"], **headers}
        assert_error(upper.create(GOOD), 401, "sign-in-required")
    assert_error(lower.update(made["profileid"], GOOD), 404, "invalid-profileid")
    assert_error(
        lower.create(GOOD, accountid=upper.accountid), 404, "invalid-accountid"
    )
    for appid in ("", " ", "a b", "é", "a" * 65, "a/b", "a\tb"):
        user.headers["X-Appid"] = appid.encode().decode("latin1")
        assert_error(user.create(GOOD), 400, "invalid-appid")


def test_a_create_repeated_with_its_key_changes_nothing(app, user, administrator):
    user.headers["Idempotency-Key"] = key = "~ Key " + "x" * 249
    first = user.create({**GOOD, "default": "true"}).json
    digest = sha256(f"{user.appid} {user.accountid} {key}".encode()).hexdigest()
    assert first["profileid"] == f"prof_{digest[:16]}", (
        "the same one in each process and version"
    )
    other = create_profile(user.account, user.accountid, {**GOOD, "default": True})
    for options in (
        {"data": GOOD},
        {"data": named("x", default="true")},
        {"json": named("y")},
    ):
        again = user.create(**options)
        assert (again.status_code, again.json) == (201, first)
    body = named("z", default="true")
    assert (
        create_profile(user.account, user.accountid, body, idempotency_key=key) == first
    )
    assert default_profiles()[user.accountid] == other["profileid"]
    updated = user.update(first["profileid"], named("updated")).json
    assert user.create(GOOD).json == updated
    user.headers["Idempotency-Key"] = key[:-1]
    administrator.headers["Idempotency-Key"] = key
    made = [user.create(GOOD).json, administrator.create(GOOD).json]
    assert administrator.profiles() == [*made[::-1], other, updated]


@pytest.mark.parametrize("default", ["", "true"])
def test_of_several_at_once_one_is_stored(app, user, administrator, default):
    account, user.headers["Idempotency-Key"] = user.account, "key"

    def create(body):
        with app.app_context():
            return create_profile(
                account, account.accountid, body, idempotency_key="key"
            )

    bodies = [named(f"n{number}", default=default) for number in range(4)]
    calls = [partial(create, body) for body in bodies]
    first, *others = at_once(*calls, *(lambda b=b: user.create(b).json for b in bodies))
    assert others == [first] * 7
    assert administrator.profiles() == [first]
    assert default_profiles()[user.accountid] == (
        first["profileid"] if default else None
    )


@pytest.mark.parametrize("when", ["before", "within", "meanwhile"])
def test_a_create_is_repeated_within_a_transaction(app, user, administrator, when):
    """What was stored by another connection counts, before or, on MySQL, after it began."""
    account, first = user.account, None

    def create(name):
        with app.app_context():
            return create_profile(
                account, account.accountid, named(name), idempotency_key="k"
            )

    if when == "before":
        first = create("first")
    with transaction():
        assert list_profiles(administrator.account) == (first and [first])
        if when == "within":
            first = create("first")
        elif when == "meanwhile" and db.kind == "mysql":
            (first,) = at_once(lambda: create("first"))
        again, other = create("again"), create_profile(account, account.accountid, GOOD)
    assert again == (first or again)
    assert administrator.profiles() == [other, again]


def test_keys_that_are_refused_and_errors_that_are_not_kept(user, administrator):
    for key in ("", "x" * 256, "é", "a\tb", "\x7f"):
        user.headers["Idempotency-Key"] = key.encode().decode("latin1")
        assert_error(user.create(GOOD), 400, "invalid-idempotency-key")
    for key in ("", "x" * 256, "é", "a\n", b"x", 1, True, ["x"]):
        with pytest.raises(ServiceError, match="^invalid-idempotency-key$"):
            create_profile(user.account, user.accountid, GOOD, idempotency_key=key)
    user.headers["Idempotency-Key"] = "key"
    assert_error(user.create({**GOOD, "full-name": ""}), 400, "invalid-full-name")
    made = user.create(GOOD).json
    with connection():  # a collision that somebody made
        mine = Profile.update(accountid=administrator.accountid)
        mine.where(Profile.profileid == made["profileid"]).execute()
    assert_error(user.create(GOOD), 400, "invalid-idempotency-key")
    assert administrator.profiles() == [made | {"accountid": administrator.accountid}]


def test_unknown_paths_and_methods(app):
    client = app.test_client()
    for path in (
        "/nowhere",
        f"{PROFILES}/",
        "/api//administrator/profiles",
        "/docs//a.css",
    ):
        response = client.get(
            environ_overrides={"PATH_INFO": path, "HTTP_HOST": "evil.example"}
        )
        assert_error(response, 404, "not-found")
        assert "evil" not in str(response.headers)
    for method, path in FOUR:
        response = client.open(path, method="DELETE")
        assert_error(response, 405, "method-not-allowed")
        assert method in response.headers["Allow"]


def test_a_request_id_is_kept_and_any_other_replaced(app):
    kept, other = (
        ("a", "A-1_b.c", "x" * 128),
        ("", " ", "x" * 129, "a b", "é", 'a"', "a=b"),
    )
    for given in kept + other:
        headers, client = (
            {"X-Request-Id": given.encode().decode("latin1")},
            app.test_client(),
        )
        answers = [
            client.get(path, headers=headers)
            for path in ("/health", "/nowhere", PROFILES)
        ]
        found = {answer.headers["X-Request-Id"] for answer in answers}
        assert found == {given} if given in kept else len(found) == 3
        assert given in kept or all(
            re.fullmatch("[0-9a-f]{32}", each) for each in found
        )


def test_each_response_has_the_headers_that_all_have(app, caplog):
    app.add_url_rule("/defect", view_func=lambda: {}["the reason"])
    for status, path, headers in [
        *((200, path, {}) for path in ("/health", "/openapi.json", "/docs/")),
        *((200, "/docs/swagger-ui.css", {}), (302, "/", {}), (500, "/defect", {})),
        (
            304,
            "/docs/swagger-ui.css",
            {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
        ),
        (400, "/health", {"Upgrade": "websocket", "Connection": "Upgrade"}),
        (400, "/health", {"Host": "x" * 64}),
        *((401, PROFILES, {}), (404, "/docs/nowhere", {}), (405, CREATE, {})),
    ]:
        response = app.test_client().get(path, headers=headers)
        response.close()  # a file
        assert response.status_code == status
        for name, value in SAFE.items():
            assert response.headers.getlist(name) == [value]
        assert len(response.headers.getlist("X-Request-Id")) == 1
        if status in (400, 500):  # Flask refuses the former by itself
            assert_error(
                response, status, "bad-request" if status == 400 else "internal-error"
            )
    assert "KeyError: 'the reason'" in caplog.text
    assert app.test_client().get("/health").json == {"object": "health", "status": "ok"}
