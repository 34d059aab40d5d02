"""HTTP: exact bodies, statuses and headers, and every way a request can be wrong."""

import io
import json
import logging
import re
from urllib.parse import quote

import pytest
from serving import (
    CREATE,
    PROFILES,
    SAFE,
    SESSIONS,
    UPDATE,
    Person,
    assert_error,
    assert_unavailable,
)

from app import create_app

FORM = "application/x-www-form-urlencoded"
GOOD = {"contact-email": "ada@example.com", "full-name": "Ada"}
FOUR = [("PATCH", UPDATE), ("POST", CREATE), ("GET", PROFILES), ("GET", SESSIONS)]


def test_create_returns_the_whole_profile(user):
    response = user.create(GOOD)
    profile = response.json
    made = {name: profile[name] for name in ("profileid", "createdAt")}
    names = "profileid object appid accountid companyName fullName contactEmail displayEmail"
    names += " displayName phone occupation location dob website fields createdAt updatedAt"
    assert (response.status_code, list(profile)) == (201, names.split())
    assert profile == dict.fromkeys(profile) | made | {
        "object": "profile",
        "appid": user.appid,
        "accountid": user.accountid,
        "fullName": "Ada",
        "contactEmail": "ada@example.com",
        "updatedAt": profile["createdAt"],
    }


def test_update_changes_the_configured_fields_alone(make_app):
    before = Person(make_app(USER_PROFILE_FIELDS="phone,full-name"))
    made = before.create({"phone": "1", "full-name": "Ada"}).json
    app = make_app(USER_PROFILE_FIELDS="full-name", APPID=before.appid)
    response = app.test_client().patch(
        f"{UPDATE}?profileid={made['profileid']}",
        headers=before.headers,
        data={"full-name": "Ada King", "phone": "2", "website": "w", "accountid": "acct_"},
    )
    assert response.status_code == 200
    updated = response.json["updatedAt"]
    assert response.json == {**made, "fullName": "Ada King", "updatedAt": updated}
    assert updated >= made["updatedAt"]


def test_bodies_of_each_kind(user):
    for body in (
        {"data": GOOD},
        {"data": GOOD, "content_type": "multipart/form-data"},
        {"json": GOOD},
        {"data": json.dumps(GOOD), "content_type": "application/json; charset=utf-8"},
        {"data": json.dumps(GOOD), "content_type": "application/vnd.api+json"},
    ):
        made = user.create(**body)
        assert (made.status_code, made.json["fullName"]) == (201, "Ada")
        assert user.update(made.json["profileid"], **body).status_code == 200


def test_no_body_is_an_empty_body(user):
    for content_type in (None, FORM, "multipart/form-data", "text/plain"):
        assert_error(user.create(content_type=content_type), 400, "invalid-contact-email")
    assert_error(user.create(b"", content_type="application/json"), 400, "invalid-contact-email")


PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
MULTIPART = PART % (b"contact-email", b"a@example.com") + PART[:-2] % (b"full-name", b"Ada")
BROKEN = {
    (400, "invalid-body"): [
        ("application/json", b"{"),
        ("application/json", b"[]"),
        ("application/json", b"null"),
        ("application/json", b"1e999"),
        ("application/json", b'"text"'),
        ("application/json", b'{"full-name": "\xff"}'),
        ("application/json", b'{"full-name": NaN}'),
        ("application/json", b'{"a":' * 9_000 + b"1" + b"}" * 9_000),
        ("application/json", b"[" * 60_000),
        (FORM, b"full-name=\xff"),
        ("multipart/form-data; boundary=x", MULTIPART),
        ("multipart/form-data; boundary=x", MULTIPART[:60]),
        ("multipart/form-data", MULTIPART),
        ("multipart/form-data; boundary=x", MULTIPART + b"\xff\r\n--x--\r\n"),
        ("multipart/form-data; boundary=\xe9", MULTIPART),
    ],
    (415, "unsupported-media-type"): [
        ("text/plain", b"full-name=Ada"),
        ("application/xml", b"<a/>"),
        (None, b"full-name=Ada"),
    ],
    (413, "body-too-large"): [
        ("application/json", b" " * 65_537),
        (FORM, b"full-name=" + b"x" * 65_536),
        ("multipart/form-data; boundary=x", b"x" * 65_537),
        ("text/plain", b"x" * 65_537),
    ],
}


@pytest.mark.parametrize("error", BROKEN)
def test_broken_bodies(user, administrator, error):
    for content_type, text in BROKEN[error]:
        assert_error(user.create(text, content_type=content_type), *error)
    assert administrator.get(PROFILES).json is None


def test_json_values_that_are_no_strings(user):
    for value in (None, False, 1, 1.5, [], ["Ada"], {}, {"a": "b"}):
        assert_error(user.create(json={**GOOD, "full-name": value}), 400, "invalid-full-name")
        assert user.create(json={**GOOD, "phone": value}).status_code == 201
    assert user.create(json={**GOOD, "full-name": True}).json["fullName"] == "true"


def test_a_body_of_exactly_the_limit_is_read(make_app):
    user = Person(make_app(USER_PROFILE_FIELDS="phone", MAXIMUM_POST_DATA_LENGTH=1000))
    assert user.create(b"phone=" + b"1" * 994, content_type=FORM).json["phone"] == "1" * 994
    assert_error(user.create(b"phone=" + b"1" * 995, content_type=FORM), 413, "body-too-large")


def test_values_longer_than_a_mysql_text(make_app):
    settings = {"USER_PROFILE_FIELDS": "website,phone", "MAXIMUM_POST_DATA_LENGTH": 500_000}
    user = Person(make_app(**settings), administrator=True)
    body = {"website": "👩" * 80_000, "phone": "x" * 70_000}
    text = json.dumps(body, ensure_ascii=False).encode()
    made = user.create(text, content_type="application/json")
    assert made.json["website"] == body["website"]
    multipart = user.create(body, content_type="multipart/form-data")
    assert multipart.json["phone"] == body["phone"]
    assert [row["website"] == body["website"] for row in user.get(PROFILES).json] == [True, True]


# Who may


@pytest.mark.parametrize(("method", "path"), FOUR)
def test_sign_in_is_required_first(app, user, method, path):
    tokens = ["", "Bearer", f"Bearer {'0' * 64}", f"Basic {user.token}", f"Bearer {user.token}0"]
    tokens += [f"Bearer {user.token.upper()}", user.token, "Bearer é", f"Bearer {user.token} x"]
    for token in tokens:
        response = app.test_client().open(
            f"{path}?limit=x", method=method, headers={"Authorization": token}, data=b"x" * 70_000
        )
        assert_error(response, 401, "sign-in-required")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert_error(app.test_client().open(path, method=method), 401, "sign-in-required")
    user.headers["Authorization"] = f"bEARER  {user.token}"
    assert user.send(method, path).status_code != 401


def test_listings_are_for_administrators(user):
    for path in (PROFILES, SESSIONS):
        assert_error(user.get(f"{path}?limit=x&after=y"), 403, "administrator-required")


def test_unknown_targets(user):
    for unknown in ("acct_0123456789abcdef", "prof_0123456789abcdef", "x", "é", "\x00", "' OR 1"):
        assert_error(user.update(quote(unknown)), 404, "invalid-profileid")
        assert_error(user.create(accountid=quote(unknown)), 404, "invalid-accountid")


def test_identifiers_are_compared_byte_for_byte(user, administrator):
    made = user.create(GOOD).json
    for change in (str.upper, str.title, "{}%20".format, "%20{}".format):
        profileid, accountid = change(made["profileid"]), change(user.accountid)
        assert_error(user.update(profileid, GOOD), 404, "invalid-profileid")
        assert_error(user.create(GOOD, accountid=accountid), 404, "invalid-accountid")
        assert administrator.get(f"{PROFILES}?accountid={accountid}").json is None
        assert_error(administrator.get(f"{PROFILES}?after={profileid}"), 400, "invalid-after")


def test_anothers_target_is_refused_before_the_fields(user, administrator):
    made = user.create(GOOD).json
    assert_error(administrator.update(made["profileid"], {}), 403, "invalid-account")
    assert_error(administrator.create({}, accountid=user.accountid), 403, "invalid-account")
    assert administrator.get(PROFILES).json == [made]


@pytest.mark.parametrize("query", ["", "?profileid=&accountid="])
def test_a_missing_target_is_refused_before_the_body(user, query):
    broken = {"data": b"{", "content_type": "application/json"}
    for options in (broken, {"data": b"x" * 70_000}, {"data": GOOD}, {}):
        update = user.send("PATCH", UPDATE + query, **options)
        assert_error(update, 400, "invalid-profileid")
        create = user.send("POST", CREATE + query, **options)
        assert_error(create, 400, "invalid-accountid")


# Applications


def test_invalid_appid(user):
    for appid in ("", " ", "a b", "é", "a" * 65, "a/b", "a\tb"):
        user.headers["X-Appid"] = appid.encode().decode("latin1")
        assert_error(user.create(GOOD), 400, "invalid-appid")


def test_the_request_names_its_application(app):
    upper, lower = Person(app, appid="Shop"), Person(app, appid="shop")
    made = upper.create(GOOD).json
    assert made["appid"] == "Shop"
    upper.headers["X-Appid"] = "shop"
    assert_error(upper.create(GOOD), 401, "sign-in-required")
    del upper.headers["X-Appid"]
    assert_error(upper.create(GOOD), 401, "sign-in-required")
    assert_error(lower.update(made["profileid"], GOOD), 404, "invalid-profileid")
    assert_error(lower.create(GOOD, accountid=upper.accountid), 404, "invalid-accountid")


# Errors of Flask and of the database


def test_unknown_paths_and_methods(app):
    client = app.test_client()
    assert_error(client.get("/nowhere"), 404, "not-found")
    assert_error(client.get(PROFILES + "/"), 404, "not-found")
    for path in ("/api//administrator/profiles", "/docs//", "/docs//a.css", "", "//health"):
        wire = {"PATH_INFO": path, "HTTP_HOST": "evil.example"}
        response = client.get(environ_overrides=wire)
        assert_error(response, 404, "not-found")
        assert "evil" not in str(response.headers)
    for method, path in FOUR:
        response = client.open(path, method="DELETE")
        assert_error(response, 405, "method-not-allowed")
        assert method in response.headers["Allow"]


def test_a_request_id_is_kept_and_any_other_replaced(app):
    def answered(given):
        headers = {"X-Request-Id": given.encode().decode("latin1")}
        paths = ("/health", "/nowhere", PROFILES)
        answers = [app.test_client().get(path, headers=headers) for path in paths]
        return {answer.headers["X-Request-Id"] for answer in answers}

    for given in ("a", "A-1_b.c", "x" * 128):
        assert answered(given) == {given}
    for given in ("", " ", "x" * 129, "a b", "é", 'a"', "a=b"):
        made = answered(given)
        assert len(made) == 3
        assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)


def without_handlers(monkeypatch):
    """As in a process that has set up no logging: pytest's handlers are gone for the test."""
    for name in (None, "profiles"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])


def test_a_defect_is_told_to_the_log_alone(make_app, monkeypatch, capsys):
    """Each line of it has the id of its request."""
    without_handlers(monkeypatch)
    app = make_app()

    @app.get("/defect")
    def fail():
        raise RuntimeError("the reason\nmethod=GET path=/forged")

    headers = {"X-Request-Id": "of-the-router"}
    assert_error(app.test_client().get("/defect", headers=headers), 500, "internal-error")
    lines = capsys.readouterr().err.splitlines()
    assert "request_id=of-the-router method=GET path=/forged" in lines
    assert [line for line in lines if not line.startswith("request_id=of-the-router ")] == []


def test_a_handler_that_the_host_set_up_keeps_its_format(make_app, monkeypatch):
    without_handlers(monkeypatch)
    handler, logger = logging.NullHandler(), logging.getLogger("profiles")
    logger.addHandler(handler)
    make_app()
    assert (logger.handlers, handler.formatter) == ([handler], None)


def test_health(app):
    response = app.test_client().get("/health")
    assert (response.status_code, response.json) == (200, {"object": "health", "status": "ok"})


def test_each_response_has_the_headers_that_all_have(app):
    for status, path, headers in [
        (200, "/health", {}),
        (200, "/openapi.json", {}),
        (200, "/docs/", {}),
        (200, "/docs/swagger-ui.css", {}),
        (302, "/", {}),
        (304, "/docs/swagger-ui.css", {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}),
        (400, "/health", {"Upgrade": "websocket", "Connection": "Upgrade"}),
        (400, "/health", {"Host": "x" * 64}),
        (401, PROFILES, {}),
        (404, "/docs/nowhere", {}),
        (405, CREATE, {}),
    ]:
        response = app.test_client().get(path, headers=headers)
        response.close()  # a file
        assert response.status_code == status
        for name, value in SAFE.items():
            assert response.headers.getlist(name) == [value]
        assert len(response.headers.getlist("X-Request-Id")) == 1
        if status == 400:  # Flask refuses these by itself
            assert_error(response, 400, "bad-request")


def test_a_database_that_is_away(tmp_path, caplog):
    app = create_app({"DATABASE_URL": f"sqlite:///{tmp_path}/missing/profiles.db"})
    headers = {"Authorization": f"Bearer {'0' * 64}"}
    for response in (
        app.test_client().get("/health"),
        app.test_client().patch(UPDATE, headers=headers),
        app.test_client().get(SESSIONS, headers=headers),
    ):
        assert_unavailable(response)
    assert "unable to open database file" in caplog.text
    (tmp_path / "missing").mkdir()
    assert app.test_client().get("/health").status_code == 200


def test_a_body_shorter_than_it_says(user):
    text = io.BytesIO(b"contact-email=a@example.com&full-name=Ada")
    wire = {"wsgi.input": text, "wsgi.input_terminated": True, "CONTENT_LENGTH": "60"}
    assert_error(user.create(content_type=FORM, environ_overrides=wire), 400, "invalid-body")


def test_a_replacement_character_is_kept_and_a_byte_that_is_no_utf8_refused(user, administrator):
    for name, status in ((b"a\xff", 400), (b"\xef\xbf\xbd", 201)):
        values = {b"contact-email": b"a@example.com", b"full-name": name, b"phone": b"\xef\xbf\xbd"}
        text = b"".join(PART % pair for pair in values.items()) + b"--x--\r\n"
        response = user.create(text, content_type="multipart/form-data; boundary=x")
        assert response.status_code == status
    assert response.json["fullName"] == "\ufffd"
    assert administrator.get(PROFILES).json == [response.json]


def test_a_file_is_ignored_and_as_many_parts_as_fit_are_read(user):
    body = {**GOOD, "phone": (io.BytesIO(b"\xff" * 1_000), "phone.bin")}
    made = user.create(body, content_type="multipart/form-data")
    assert (made.status_code, made.json["phone"]) == (201, None)
    text = PART % (b"a", b"") * 1_001 + MULTIPART + b"\r\n--x--\r\n"
    response = user.create(text, content_type="multipart/form-data; boundary=x")
    assert response.status_code == 201
