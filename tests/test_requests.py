"""What is sent and answered, beside the rules of the interface."""

import json
import logging
import re
from enum import Enum
from io import BytesIO

import pytest
from service import CREATE, UPDATE, assert_error, named, run, sign_in

from app import LogFormatter, create_app
from errors import ServiceError
from profiles import create_profile

ADA = named("Ada")
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data;boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
PARTS = PART % (b"contact-email", b"a@b.co") + PART % (b"full-name", b"Ada")
either_endpoint = pytest.mark.parametrize(
    "method, path", [("POST", CREATE), ("PATCH", UPDATE)]
)


# One application and one user serve most tests, which look at one answer alone.


@pytest.fixture(scope="module")
def app(database_url):
    app = create_app({"DATABASE_URL": database_url, "APPID": "requests"})
    with app.app_context():
        yield app


@pytest.fixture(scope="module")
def user(app):
    return sign_in(app)


@either_endpoint
@pytest.mark.parametrize(
    "status, code, name, value",
    [
        (400, "bad-request", "Host", "a" * 65),
        (400, "invalid-appid", "X-Appid", ""),
        (400, "invalid-appid", "X-Appid", "a" * 65),
        (401, "sign-in-required", "X-Appid", "Requests"),
        (401, "sign-in-required", "Authorization", "Bearer {user.token_in_capitals}"),
        (401, "sign-in-required", "Authorization", "Bearer {user.session[csrfToken]}"),
        (401, "sign-in-required", "Authorization", "Basic {user.token}"),
        (401, "sign-in-required", "Authorization", "{user.token}"),
    ],
)
def test_application_and_session_are_checked_before_the_body(
    user, method, path, status, code, name, value
):
    """The body is too large, which would be a 413."""
    user.token_in_capitals = user.token.upper()
    headers = {name: value.format(user=user)}
    response = user.open(path, method=method, data="x" * 65_537, headers=headers)
    assert_error(response, status, code)
    assert response.headers.get("WWW-Authenticate") == (
        "Bearer" if status == 401 else None
    )


def test_the_scheme_of_a_token_is_written_in_any_case(user):
    headers = {"Authorization": f"bEARER  {user.token}"}
    assert user.create(ADA, headers=headers).status_code == 201


@either_endpoint
@pytest.mark.parametrize(
    "content_type, data",
    [
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b'{"full-name": "\xff"}'),
        (JSON, b'{"full-name": NaN}'),
        (JSON, b'{"x": "\\ud800"}'),
        (JSON, b"[" * 9_000 + b"]" * 9_000),
        (FORM, b"full-name=\xff"),
        (FORM, b"full-name=Jos%E9"),
        (FORM, b"full-name=%EF%BF%BD"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data;boundary=\xe9", b"--\xe9--"),
        (MULTIPART, PARTS[:60]),
        (MULTIPART, PARTS[:-2]),
        (MULTIPART, PARTS[:-2] + b"\xff\r\n--x--\r\n"),
        (MULTIPART, PARTS[:-2] + "\ufffd\r\n--x--\r\n".encode()),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_a_body_that_is_not_what_its_type_says(user, method, path, content_type, data):
    """It is checked before the target, which is missing here."""
    response = user.open(path, method=method, data=data, content_type=content_type)
    assert_error(response, 400, "invalid-body")


@either_endpoint
@pytest.mark.parametrize(
    "content_type, length, status, code",
    [
        ("text/plain", 1, 415, "unsupported-media-type"),
        ("", 1, 415, "unsupported-media-type"),
        ("text/plain", 65_537, 413, "body-too-large"),
        (FORM, 65_537, 413, "body-too-large"),
        (FORM, 65_538, 413, "body-too-large"),
    ],
)
def test_a_body_of_another_type_or_too_large(
    user, method, path, content_type, length, status, code
):
    data = b"x" * length
    response = user.open(path, method=method, data=data, content_type=content_type)
    assert_error(response, status, code)


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "sessions"),
        ("DELETE", "delete-account"),
    ],
)
@pytest.mark.parametrize(
    "data",
    ["x" * 65_537, "{"],
    ids=["too large", "broken"],
)
def test_a_request_that_reads_no_body_takes_any(app, administrator, method, path, data):
    path = f"/api/administrator/{path}?accountid={sign_in(app).accountid}"
    response = administrator.open(path, method=method, data=data, content_type=JSON)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [None, JSON, FORM, MULTIPART, "text/plain"],
)
def test_an_empty_body_has_no_fields_whatever_its_type(user, content_type):
    response = user.create(b"", content_type=content_type)
    assert_error(response, 400, "invalid-contact-email")


@pytest.mark.parametrize(
    "text",
    ["{0} ", "{1}", "x", "é", "\0", "' OR 1"],
)
def test_a_target_is_compared_byte_for_byte(user, text):
    """And before the fields, which are missing here."""
    made = user.create(ADA).json
    query = {}
    for name in ("profileid", "accountid"):
        own = made[name]
        query[name] = text.format(own, own.upper())
    updated = user.patch(UPDATE, query_string=query)
    assert_error(updated, 404, "invalid-profileid")
    created = user.post(CREATE, query_string=query)
    assert_error(created, 404, "invalid-accountid")


def test_a_body_of_exactly_the_limit_is_stored_whole(make_app):
    """Also one that is longer than a TEXT of MySQL."""
    app = make_app(USER_PROFILE_FIELDS="phone", MAXIMUM_POST_DATA_LENGTH=400_000)
    user = sign_in(app, administrator=True)
    phone = "👩" * 99_997 + "123456"
    body = f"phone={phone}".encode()
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    chunks = {"content_type": FORM, "environ_overrides": chunked}
    user.create(body, content_type=FORM)
    assert_error(user.create(body + b"+", **chunks), 413, "body-too-large")
    (profile,) = user.profiles()
    assert profile["phone"] == phone


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_body_that_breaks_off(user, is_readable):
    text = BytesIO(b"contact-email=a@b.co&full-name=Ada")
    if not is_readable:
        text.close()  # so that reading fails, as that of broken chunks does
    wire = {"wsgi.input": text, "wsgi.input_terminated": True, "CONTENT_LENGTH": "60"}
    response = user.create(content_type=FORM, environ_overrides=wire)
    assert_error(response, 400, "invalid-body")


def test_a_file_is_ignored(user):
    file = BytesIO(b"\xff"), "name.bin"
    response = user.create({**ADA, "full-name": file})
    assert_error(response, 400, "invalid-full-name")


def test_the_first_of_a_name_counts_but_the_last_in_json(user):
    form = "contact-email=a@b.co&full-name=first&full-name=last"
    first = user.create(form, content_type=FORM).json
    assert first["fullName"] == "first"
    text = '{"contact-email":"a@b.co","full-name":"first","full-name":"last"}'
    last = user.create(text, content_type=JSON).json
    assert last["fullName"] == "last"


@pytest.mark.parametrize(
    "text", [" ", "  as sent \x01'\"\\%;--\r\n naïve 中文 👩‍🚀\u200b "]
)
@pytest.mark.parametrize(
    "content_type", [f"{JSON}; charset=utf-8", "application/a+json", FORM, MULTIPART]
)
def test_a_text_is_stored_exactly_as_it_was_sent(
    user, administrator, content_type, text
):
    body = {**ADA, "full-name": text}
    data = json.dumps(body) if "json" in content_type else body
    response = user.create(data, content_type=content_type)
    assert response.json["fullName"] == text
    assert administrator.profiles()[0] == response.json


def test_a_replacement_character_is_stored_from_json(user):
    """In a form it is refused, since it stands for bytes that are not UTF-8."""
    response = user.create(json={**ADA, "full-name": "\ufffd"})
    assert response.json["fullName"] == "\ufffd"


def test_the_default_of_json_may_be_true_but_not_1(user):
    """What is no string is ignored in a field that is not configured."""
    made = user.create(json={**ADA, "default": True}).json
    other = user.create(json={**ADA, "default": 1, "phone": 1})
    assert other.status_code == 201
    assert user.caller.profileid == made["profileid"]


@pytest.mark.parametrize("kind", ["json", "data"])
@pytest.mark.parametrize("field", ["full-name", "contact-email"])
def test_a_null_character_is_refused(user, field, kind):
    """PostgreSQL, to which a product may copy its profiles, stores none."""
    profileid = user.create(ADA).json["profileid"]
    sent = {kind: {**ADA, field: "ada\0@example.com"}}
    for response in (
        user.post(f"{CREATE}?accountid={user.accountid}", **sent),
        user.patch(f"{UPDATE}?profileid={profileid}", **sent),
    ):
        assert_error(response, 400, f"invalid-{field}")


class Job(str, Enum):  # noqa: UP042 (str() of it is Job.PILOT)
    PILOT = "pilot"
    ADDRESS = "pilot@example.com"


def test_a_subclass_of_str_is_stored_as_its_text(user):
    body = {"occupation": Job.PILOT, "contact-email": Job.ADDRESS}
    made = create_profile(user.caller, user.accountid, body, user_profile_fields=body)
    assert repr(made["occupation"]) == "'pilot'"
    assert repr(made["contactEmail"]) == "'pilot@example.com'"


def test_bodies_that_only_python_can_pass(user):
    half = {**ADA, "full-name": "\ud800"}
    with pytest.raises(ServiceError, match="^invalid-full-name$"):
        create_profile(user.caller, user.accountid, half)
    with pytest.raises(ServiceError, match="^invalid-fax$"):
        create_profile(user.caller, user.accountid, ADA, user_profile_fields=["fax"])


@pytest.mark.parametrize(
    "request_id",
    ["", "x" * 129, "a b", "é", 'a"'],
)
def test_any_other_request_id_is_replaced(client, request_id):
    response = client.get("/health", headers={"X-Request-Id": request_id})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])


@pytest.mark.parametrize(
    "path, status",
    [
        ("/health", 200),
        ("/docs/", 200),
        ("/docs", 302),
        ("/api/administrator/profiles", 401),
        ("/nowhere", 404),
    ],
)
def test_each_answer_has_the_headers_that_all_have(client, path, status):
    headers = {"X-Request-Id": "A-1_b.c" + "x" * 121}
    response = client.get(path, headers=headers)
    assert response.status_code == status
    assert response.headers["X-Request-Id"] == headers["X-Request-Id"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers.getlist("Cache-Control") == ["no-store"]


@pytest.mark.parametrize("path", ["/docs/swagger-ui-bundle.js", "/docs/API.md"])
def test_a_file_of_the_page_is_kept_and_sent_again_only_if_it_changed(client, path):
    with client.get(path) as response:
        assert response.headers.getlist("Cache-Control") == ["no-cache"]
    headers = {"If-None-Match": response.headers["ETag"]}
    with client.get(path, headers=headers) as response:
        assert response.status_code == 304
    assert response.headers.getlist("Cache-Control") == ["no-cache"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_no_answer_has_a_cors_header(user, method):
    headers = {"Origin": "https://x.example", "Access-Control-Request-Method": "POST"}
    for path in (CREATE, "/api/user/account", "/health", "/openapi.json"):
        response = user.open(path, method=method, headers=headers)
        assert "Access-Control" not in str(response.headers)


@pytest.mark.parametrize(
    "path",
    [
        "/health/",
        "/api//user/account",
        "/docs//a.css",
        "",
        "//health",
        f"///{UPDATE}",
        "health",
        "x/health",
    ],
)
def test_an_unknown_path(client, path):
    """One that does not begin with exactly one slash is unknown, too."""
    environ = {"PATH_INFO": path, "HTTP_HOST": "evil.example"}
    response = client.get(environ_overrides=environ)
    assert_error(response, 404, "not-found")
    assert "evil" not in str(response.headers)


YEAR = f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT"
ZONE = f"Mon, 01 Jan 2100 00:00:00 +{'9' * 20}"


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Modified-Since": YEAR},
        {"If-Modified-Since": ZONE},
        {"If-Range": YEAR, "Range": "bytes=0-0"},
        {"If-Match": '"another"'},  # the body of a 412 would be the file, not JSON
    ],
    ids=["an impossible year", "an impossible zone", "a range", "another tag"],
)
def test_a_file_of_the_page_is_sent_whole(client, headers):
    with client.get("/docs/API.md", headers=headers) as response:
        assert response.status_code == 200


def test_a_method_that_is_not_allowed(client):
    response = client.put(UPDATE, headers={"Host": "evil.example"})
    assert_error(response, 405, "method-not-allowed")
    assert "PATCH" in response.headers["Allow"]
    assert "evil" not in str(response.headers)


@pytest.mark.parametrize(
    "separator",
    ["\n", "\r", "\x1b", "\u2028"],
)
def test_an_error_cannot_forge_a_line(separator):
    """Neither its own message nor that of the line before it, which has a path."""
    forged = f"{separator}time=2026-11-21T09:30:00.123Z method=DELETE"
    record = logging.makeLogRecord({"msg": "Exception on %s", "args": (forged,)})
    try:
        raise ValueError(forged)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *frames, last = LogFormatter().format(record).splitlines()
    assert first.endswith(repr(f"Exception on {forged}"))
    assert frames[0] == "Traceback (most recent call last):"
    assert frames[-1] == "    raise ValueError(forged)"
    assert last == repr(f"ValueError: {forged}")


@pytest.mark.parametrize(
    "field", ["full-name", "contact-email", "display-email", "dob", "website"]
)
def test_nul_is_refused(make_app, field):
    """The description says so by a pattern."""
    body = {"full-name": "Ada", field: "a@b\0.com"}
    user = sign_in(make_app(USER_PROFILE_FIELDS=f"{field}"))
    assert_error(user.create(body), 400, f"invalid-{field}")
    valid = {"dob": "1950-01-31"}.get(field, "a@b.com")
    profileid = user.create({field: valid}).json["profileid"]
    assert_error(user.update(profileid, body), 400, f"invalid-{field}")


class EndingStream(BytesIO):
    """A body during whose arrival the session of its token is ended."""

    def __init__(self, data, end):
        super().__init__(data)
        self.end = end

    def readinto(self, buffer):
        self.end()
        return super().readinto(buffer)


@pytest.mark.parametrize("path", [UPDATE, CREATE, "/api/administrator/create-session"])
def test_a_token_that_is_ended_while_its_body_arrives(app, path):
    user = sign_in(app)
    stream = EndingStream(b"{}", lambda: run(app, "end-sessions", user.accountid))
    response = user.open(
        path,
        method="PATCH" if path == UPDATE else "POST",
        input_stream=stream,
        content_length=2,
        content_type="application/json",
    )
    assert_error(response, 401, "sign-in-required", "ended")


class BrokenStream(BytesIO):
    """A body that the server fails to receive."""

    def readinto(self, buffer):
        raise RuntimeError


@pytest.mark.parametrize(
    "make_body, code",
    [
        (lambda: {"environ_overrides": {"CONTENT_LENGTH": "2"}}, "invalid-body"),
        (lambda: {"input_stream": BrokenStream(b"{}")}, "invalid-body"),
        (lambda: {"data": b"x" * 70_000}, "body-too-large"),
        (lambda: {"data": b"{", "content_type": "application/json"}, "invalid-body"),
        (lambda: {"data": b"x", "content_type": "x/x"}, "unsupported-media-type"),
    ],
    ids=["cut", "failed", "too large", "malformed", "of another type"],
)
@pytest.mark.parametrize("path", [UPDATE, CREATE, "/api/administrator/create-session"])
def test_a_wrong_token_comes_before_a_wrong_body(client, user, path, make_body, code):
    method = "PATCH" if path == UPDATE else "POST"
    response = client.open(path, method=method, **make_body())
    assert response.json == {"object": "error", "message": "sign-in-required"}
    response = user.open(path, method=method, **make_body())
    assert response.json == {"object": "error", "message": code}


def test_a_header_that_a_response_already_has_is_not_doubled(make_app):
    """It may be that of a view or a hook of a host program."""
    app = make_app()
    app.add_url_rule("/own", view_func=lambda: ("", {"Cache-Control": "private"}))
    headers = app.test_client().get("/own").headers
    assert headers.getlist("Cache-Control") == ["no-store"]
