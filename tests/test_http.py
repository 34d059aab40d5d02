"""HTTP: exact bodies, statuses and headers, and every way a request can be wrong."""

import io
import json
import logging
import re

import pytest
from databases import cut_connections, is_sqlite
from flask.logging import default_handler
from gunicorn.http.errors import InvalidChunkSize
from serving import (
    CREATE,
    PROFILES,
    SESSIONS,
    UPDATE,
    Person,
    assert_error,
    assert_unavailable,
    exchange,
)

from app import create_app
from database import connection
from errors import ServiceError

FORM = "application/x-www-form-urlencoded"
GOOD = {"contact-email": "ada@example.com", "full-name": "Ada"}
FOUR = [("PATCH", UPDATE), ("POST", CREATE), ("GET", PROFILES), ("GET", SESSIONS)]


def test_create_returns_the_whole_profile(user):
    response = user.create(GOOD)
    assert response.status_code == 201
    profile = response.json
    assert list(profile.items()) == [
        ("profileid", profile["profileid"]),
        ("object", "profile"),
        ("appid", user.appid),
        ("accountid", user.accountid),
        ("companyName", None),
        ("fullName", "Ada"),
        ("contactEmail", "ada@example.com"),
        ("displayEmail", None),
        ("displayName", None),
        ("phone", None),
        ("occupation", None),
        ("location", None),
        ("dob", None),
        ("website", None),
        ("fields", None),
        ("createdAt", profile["createdAt"]),
        ("updatedAt", profile["createdAt"]),
    ]


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


BODIES = [
    {"data": GOOD},
    {"data": GOOD, "content_type": "multipart/form-data"},
    {"json": GOOD},
    {"data": json.dumps(GOOD), "content_type": "application/json; charset=utf-8"},
    {"data": json.dumps(GOOD), "content_type": "application/vnd.api+json"},
]


@pytest.mark.parametrize("body", BODIES)
def test_bodies_of_each_kind(user, body):
    made = user.create(**body)
    assert (made.status_code, made.json["fullName"]) == (201, "Ada")
    assert user.update(made.json["profileid"], **body).status_code == 200


@pytest.mark.parametrize("content_type", [None, FORM, "multipart/form-data", "text/plain"])
def test_no_body_is_an_empty_body(user, content_type):
    assert_error(user.create(content_type=content_type), 400, "invalid-contact-email")
    assert_error(user.create(b"", content_type="application/json"), 400, "invalid-contact-email")


MULTIPART = (
    b'--x\r\nContent-Disposition: form-data; name="contact-email"\r\n\r\na@example.com\r\n'
    b'--x\r\nContent-Disposition: form-data; name="full-name"\r\n\r\nAda'
)
BROKEN = [
    ("application/json", b"{", 400, "invalid-body"),
    ("application/json", b"[]", 400, "invalid-body"),
    ("application/json", b"null", 400, "invalid-body"),
    ("application/json", b'"text"', 400, "invalid-body"),
    ("application/json", b'{"full-name": "\xff"}', 400, "invalid-body"),
    ("application/json", b'{"full-name": NaN}', 400, "invalid-body"),
    ("application/json", b'{"a":' * 9_000 + b"1" + b"}" * 9_000, 400, "invalid-body"),
    ("application/json", b"[" * 60_000, 400, "invalid-body"),
    (FORM, b"full-name=\xff", 400, "invalid-body"),
    ("multipart/form-data; boundary=x", MULTIPART, 400, "invalid-body"),
    ("multipart/form-data; boundary=x", MULTIPART[:60], 400, "invalid-body"),
    ("multipart/form-data", MULTIPART, 400, "invalid-body"),
    ("multipart/form-data; boundary=x", MULTIPART + b"\xff\r\n--x--\r\n", 400, "invalid-body"),
    ("multipart/form-data; boundary=\xe9", MULTIPART, 400, "invalid-body"),
    ("text/plain", b"full-name=Ada", 415, "unsupported-media-type"),
    ("application/xml", b"<a/>", 415, "unsupported-media-type"),
    (None, b"full-name=Ada", 415, "unsupported-media-type"),
    ("application/json", b" " * 65_537, 413, "body-too-large"),
    (FORM, b"full-name=" + b"x" * 65_536, 413, "body-too-large"),
    ("multipart/form-data; boundary=x", b"x" * 65_537, 413, "body-too-large"),
    ("text/plain", b"x" * 65_537, 413, "body-too-large"),
]


@pytest.mark.parametrize(("content_type", "text", "status", "code"), BROKEN)
def test_broken_bodies(user, administrator, content_type, text, status, code):
    assert_error(user.create(text, content_type=content_type), status, code)
    assert administrator.get(PROFILES).json is None


@pytest.mark.parametrize("value", [None, False, 1, 1.5, [], ["Ada"], {}, {"a": "b"}])
def test_json_values_that_are_no_strings(user, value):
    assert_error(user.create(json={**GOOD, "full-name": value}), 400, "invalid-full-name")
    assert user.create(json={**GOOD, "phone": value}).status_code == 201


def test_json_true_is_the_string_true(user):
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


@pytest.mark.parametrize("path", [PROFILES, SESSIONS])
def test_listings_are_for_administrators(user, path):
    assert_error(user.get(f"{path}?limit=x&after=y"), 403, "administrator-required")


def test_bearer_is_read_in_any_case(app, user):
    user.headers["Authorization"] = f"bEARER  {user.token}"
    assert user.create(GOOD).status_code == 201


UNKNOWN = ["acct_0123456789abcdef", "prof_0123456789abcdef", "x", "é👩", "\x00", "%", "' OR 1=1 --"]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_targets(user, unknown):
    query = {"profileid": unknown, "accountid": unknown}
    update = user.client.patch(UPDATE, query_string=query, headers=user.headers)
    assert_error(update, 404, "invalid-profileid")
    create = user.client.post(CREATE, query_string=query, headers=user.headers)
    assert_error(create, 404, "invalid-accountid")


@pytest.mark.parametrize("query", ["", "?profileid=&accountid="])
def test_missing_targets(user, query):
    update = user.client.patch(UPDATE + query, headers=user.headers, data=GOOD)
    assert_error(update, 400, "invalid-profileid")
    create = user.client.post(CREATE + query, headers=user.headers, data=GOOD)
    assert_error(create, 400, "invalid-accountid")


@pytest.mark.parametrize("change", [str.upper, lambda i: i + " ", lambda i: " " + i, str.title])
def test_identifiers_are_compared_byte_for_byte(user, administrator, change):
    made = user.create(GOOD).json
    assert_error(user.update(change(made["profileid"]), GOOD), 404, "invalid-profileid")
    assert_error(user.create(GOOD, accountid=change(user.accountid)), 404, "invalid-accountid")
    assert administrator.get(f"{PROFILES}?accountid={change(user.accountid)}").json is None
    after = administrator.get(f"{PROFILES}?after={change(made['profileid'])}")
    assert_error(after, 400, "invalid-after")


def test_anothers_target_is_refused_before_the_fields(user, administrator):
    made = user.create(GOOD).json
    assert_error(administrator.update(made["profileid"], {}), 403, "invalid-account")
    assert_error(administrator.create({}, accountid=user.accountid), 403, "invalid-account")
    assert administrator.get(PROFILES).json == [made]


@pytest.mark.parametrize("query", ["", "?profileid=&accountid="])
def test_a_missing_target_is_refused_before_the_body(user, query):
    for options in ({"data": b"{", "content_type": "application/json"}, {"data": b"x" * 70_000}):
        update = user.send("PATCH", UPDATE + query, **options)
        assert_error(update, 400, "invalid-profileid")
        create = user.send("POST", CREATE + query, **options)
        assert_error(create, 400, "invalid-accountid")


# Applications


@pytest.mark.parametrize("appid", ["", " ", "a b", "é", "a" * 65, "a/b", "a\tb"])
def test_invalid_appid(user, appid):
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


@pytest.mark.parametrize("given", ["a", "A-1_b.c", "x" * 128])
def test_a_request_id_is_kept(app, given):
    for path in ("/health", "/nowhere", PROFILES):
        response = app.test_client().get(path, headers={"X-Request-Id": given})
        assert response.headers["X-Request-Id"] == given


@pytest.mark.parametrize("given", ["", " ", "x" * 129, "a b", "é", 'a"', "a=b"])
def test_any_other_request_id_is_replaced(app, given):
    headers = {"X-Request-Id": given.encode().decode("latin1")}
    made = {app.test_client().get("/", headers=headers).headers["X-Request-Id"] for _ in range(2)}
    assert len(made) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)


def test_each_line_of_a_defect_in_the_log_has_the_id_of_its_request(make_app, monkeypatch, capsys):
    def fail(*args, **options):
        raise RuntimeError("the reason\nmethod=GET path=/forged")

    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's; beside them Flask adds none
    app = make_app()
    user = Person(app)
    monkeypatch.setattr("operations.checked_fields", fail)
    user.headers["X-Request-Id"] = "of-the-router"
    assert_error(user.create(GOOD), 500, "internal-error")
    app.logger.removeHandler(default_handler)
    lines = capsys.readouterr().err.splitlines()
    assert "request_id=of-the-router method=GET path=/forged" in lines
    assert [line for line in lines if not line.startswith("request_id=of-the-router ")] == []


def test_a_handler_that_the_host_set_up_keeps_its_format(make_app):
    handler, logger = logging.NullHandler(), logging.getLogger("app")
    logger.addHandler(handler)
    make_app()
    logger.removeHandler(handler)
    assert handler.formatter is None


def test_a_defect_says_nothing_of_itself(app, caplog):
    @app.get("/defect")
    def fail():
        raise RuntimeError("the reason")

    assert_error(app.test_client().get("/defect"), 500, "internal-error")
    assert "the reason" in caplog.text


def test_health(app):
    response = app.test_client().get("/health")
    assert response.json == {"object": "health", "status": "ok"}
    assert response.status_code == 200
    assert response.headers["Cache-Control"] == "no-store"


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


def test_a_database_that_is_away_in_process(tmp_path):
    app = create_app({"DATABASE_URL": f"sqlite:///{tmp_path}/missing/profiles.db"})
    with app.app_context(), pytest.raises(ServiceError, match="^database-unavailable$"):
        with connection():
            pass


def test_connections_cut_by_the_server_are_replaced(database_url, user):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")
    for _ in range(2):
        assert user.create(GOOD).status_code == 201
        assert cut_connections(database_url) > 0
    assert user.create(GOOD).status_code == 201


def test_chunks_that_are_none(user):
    class Chunks(io.RawIOBase):
        def readinto(self, buffer):
            raise InvalidChunkSize(b"a secret")

    wire = {"wsgi.input": Chunks(), "wsgi.input_terminated": True}
    response = user.create(environ_overrides=wire)
    assert_error(response, 400, "invalid-body")


def test_a_body_shorter_than_it_says(user):
    text = io.BytesIO(b"contact-email=a@example.com&full-name=Ada")
    wire = {"wsgi.input": text, "wsgi.input_terminated": True, "CONTENT_LENGTH": "60"}
    assert_error(user.create(content_type=FORM, environ_overrides=wire), 400, "invalid-body")


def test_more_chunks_than_the_limit(make_app):
    user = Person(make_app(USER_PROFILE_FIELDS="phone", MAXIMUM_POST_DATA_LENGTH=100))
    for length, status in ((94, 201), (95, 413), (500, 413)):
        wire = {"wsgi.input": io.BytesIO(b"phone=" + b"1" * length), "wsgi.input_terminated": True}
        response = user.create(content_type=FORM, environ_overrides=wire)
        assert response.status_code == status
    assert_error(response, 413, "body-too-large")


def test_a_replacement_character_that_was_sent_is_kept(user):
    body = {**GOOD, "full-name": "\ufffd"}
    made = user.create(body, content_type="multipart/form-data")
    assert made.json["fullName"] == "\ufffd"


def test_a_byte_that_is_no_utf8_is_refused_beside_a_replacement_character(user, administrator):
    part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    values = {b"contact-email": b"a@example.com", b"full-name": b"a\xff", b"phone": b"\xef\xbf\xbd"}
    text = b"".join(part % pair for pair in values.items()) + b"--x--\r\n"
    response = user.create(text, content_type="multipart/form-data; boundary=x")
    assert_error(response, 400, "invalid-body")
    assert administrator.get(PROFILES).json is None


def test_a_file_in_a_form_is_ignored(user):
    body = {**GOOD, "phone": (io.BytesIO(b"\xff" * 1_000), "phone.bin")}
    made = user.create(body, content_type="multipart/form-data")
    assert (made.status_code, made.json["phone"]) == (201, None)


def test_as_many_parts_as_fit(user):
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
    response = user.create(
        part * 1_001 + MULTIPART + b"\r\n--x--\r\n",
        content_type="multipart/form-data; boundary=x",
    )
    assert response.status_code == 201


CHUNKED = "Transfer-Encoding: chunked"
CUT_SHORT = [
    ("Content-Length: 60", b"contact-email=a@example.com&full-name=Ada", 400, "invalid-body"),
    ("Content-Length: 65536", b"a", 400, "invalid-body"),
    ("Content-Length: 65537", b"a", 413, "body-too-large"),
    ("Content-Length: 65538", b"a", 413, "body-too-large"),
    (CHUNKED, b"29\r\ncontact-email=a@example.com&full-name=Ada\r\n", 400, "invalid-body"),
    (CHUNKED, b"50\r\ncontact-email=a@example.com&full-name=Ada", 400, "invalid-body"),
    (CHUNKED, b"10000\r\n" + b"a" * 65_536, 400, "invalid-body"),
    (CHUNKED, b"10001\r\n" + b"a" * 65_537 + b"\r\n0\r\n\r\n", 413, "body-too-large"),
]


@pytest.mark.parametrize(("header", "text", "status", "code"), CUT_SHORT)
def test_a_body_cut_short_on_the_wire(serve, database_url, header, text, status, code):
    service = serve(database_url, APPID="cut-short")
    person = Person(service, administrator=True)
    head = (
        f"POST {CREATE}?accountid={person.accountid} HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {person.token}\r\nContent-Type: {FORM}\r\n{header}\r\n\r\n"
    )
    response = exchange(service, head.encode() + text)
    assert response.startswith(f"HTTP/1.1 {status} ".encode())
    assert response.endswith(f'{{"object":"error","message":"{code}"}}'.encode())
