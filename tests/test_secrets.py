"""What a log must not contain: tokens, their hashes, and anything of a profile."""

import json
import re
import signal
from hashlib import sha256
from secrets import token_hex
from urllib.parse import urlencode

import pytest
from databases import execute, locked
from serving import (
    ALL_FIELDS,
    CREATE,
    FORM,
    PROFILES,
    Person,
    assert_unavailable,
    at_once,
    exchange,
)

pytestmark = pytest.mark.long


@pytest.fixture
def values():
    """Values such as people send, none of which can be anywhere by chance."""
    fields = ALL_FIELDS.split(",")
    emails = {name: f"secret{token_hex(6)}@example.com" for name in fields}
    return emails | {"dob": "1931-03-17"}


@pytest.fixture
def service(empty_database_url, serve, tmp_path):
    """The service with every logger at its most talkative."""
    (tmp_path / "sitecustomize.py").write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "logging.debug('here')\n"
    )
    settings = {
        "USER_PROFILE_FIELDS": ALL_FIELDS,
        "PYTHONPATH": str(tmp_path),
        "GUNICORN_CMD_ARGS": "--log-level debug",
    }
    service = serve(empty_database_url, **settings)
    yield service
    assert "[DEBUG]" in service.log()
    assert "DEBUG:root:here" in service.log()


TYPES = [
    "application/json",
    "multipart/form-data; boundary=b",
    "multipart/form-data",
    "x",
]


def send_good_and_bad(person, values):
    """Send the values in requests of all kinds; return the statuses of the answers."""
    profileid = person.create(values).json["profileid"]
    bodies = [
        values,
        values | {"contact-email": f"@{values['phone']}"},
        values | {"full-name": ""},
    ]
    for name, value in values.items():
        bodies.append(values | {name: value * 9})
    too_large = values | {"phone": values["phone"] * 6_000}
    responses = [person.create(too_large)]
    for body in bodies:
        responses.append(person.create(body))
        responses.append(person.update(profileid, body))
    for content_type in TYPES:
        for text in (urlencode(values), json.dumps(values)[:-1]):
            responses.append(person.create(text, content_type=content_type))
    for path in (PROFILES, "/none", CREATE):
        for method in ("GET", "POST", "PATCH"):
            responses.append(person.send(method, path, data=values))
    return {response.status_code for response in responses}


HEAD = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
FORM_POST = POST + f"Content-Type: {FORM}\r\n"
CHUNKED = POST + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "header without a colon": HEAD + "Authorization {secret}\r\n\r\n",
    "header with a space in its name": HEAD + "Authorization : {secret}\r\n\r\n",
    "header over two lines": HEAD + "Authorization: Bearer\r\n {secret}\r\n\r\n",
    "header cut short": HEAD + "Authorization: Bearer {secret}",
    "body cut short": FORM_POST + "Content-Length: 999\r\n\r\nphone={secret}",
    "body over its length": FORM_POST + "Content-Length: 6\r\n\r\nphone={secret}\r\n",
    "chunk without a size": CHUNKED + "{secret}\r\n\r\n",
    "chunk over its size": CHUNKED + "2\r\n{secret}\r\n0\r\n\r\n",
    "chunk cut short": CHUNKED + "999\r\n{secret}",
}


def send_broken(service, person):
    """Send requests that gunicorn refuses; return what is secret in them."""
    path = f"{CREATE}?accountid={person.accountid}"
    secrets = []
    for name, text in BROKEN.items():
        secret = f"secret{token_hex(29)}"
        secrets.append(secret)
        text = text.format(token=person.token, path=path, secret=secret)
        answer = exchange(service, text.encode())
        assert re.match(b"HTTP/1.1 4|$", answer), name
    return secrets


def test_the_log_tells_no_secret(empty_database_url, service, values):
    person = Person(service, administrator=True)
    assert send_good_and_bad(person, values) >= {200, 201, 400, 404, 405, 413, 415}

    unknown = token_hex(32)
    for token in (unknown, unknown.upper(), f"{unknown}x", f"{unknown} {person.token}"):
        headers = {"Authorization": f"Bearer {token}"}
        assert person.send("POST", PROFILES, headers).status_code == 405
        assert person.send("GET", PROFILES, headers).status_code == 401

    secrets = send_broken(service, person)
    profileid = person.profiles()[0]["profileid"]
    writes = [lambda: person.create(values), lambda: person.update(profileid, values)]
    with locked(empty_database_url):
        assert_unavailable(*at_once(*writes), within=10)
    execute(empty_database_url, "ALTER TABLE profile RENAME TO elsewhere")
    assert_unavailable(*at_once(*writes), person.get(PROFILES))

    service.kill(signal.SIGTERM)
    log = service.log()
    assert "database unavailable" in log
    assert "Shutting down" in log
    for token in (person.token, unknown):
        secrets += [token, sha256(token.encode()).hexdigest()]
    secrets += values.values()
    assert [secret for secret in secrets if secret in log] == []
