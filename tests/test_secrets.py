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
    PROFILES,
    Person,
    assert_unavailable,
    at_once,
    exchange,
)

pytestmark = pytest.mark.long


def secret_values():
    """Values such as people send, none of which can be anywhere by chance."""
    values = {
        name: f"secret{token_hex(6)}@example.com" for name in ALL_FIELDS.split(",")
    }
    return values | {"dob": "1931-03-17"}


@pytest.fixture(params=["as it is", "talkative"])
def service(request, empty_database_url, serve, tmp_path):
    """The service, also with every logger at its most talkative."""
    settings = {}
    if request.param == "talkative":
        code = "import logging; logging.basicConfig(level=logging.DEBUG); logging.debug('here')"
        (tmp_path / "sitecustomize.py").write_text(code)
        settings = {
            "PYTHONPATH": str(tmp_path),
            "GUNICORN_CMD_ARGS": "--log-level debug",
        }
    return serve(empty_database_url, USER_PROFILE_FIELDS=ALL_FIELDS, **settings)


def send_good_and_bad(person, values):
    """Send the values in requests of all kinds; returns the statuses of the responses."""
    profileid = person.create(values).json["profileid"]
    bodies = [values, *(values | {name: value * 9} for name, value in values.items())]
    bodies += [
        values | {"contact-email": f"@{values['phone']}"},
        values | {"full-name": ""},
    ]
    long = values | {"phone": values["phone"] * 6_000}
    responses = [person.create(body) for body in (*bodies, long)]
    responses += [person.update(profileid, body) for body in bodies]
    for kind in (
        "application/json",
        "multipart/form-data; boundary=b",
        "multipart/form-data",
        "x",
    ):
        for text in (urlencode(values), json.dumps(values)[:-1]):
            responses.append(person.create(text, content_type=kind))
    for path in (PROFILES, "/none", CREATE):
        responses += [
            person.send(method, path, data=values)
            for method in ("GET", "POST", "PATCH")
        ]
    return {response.status_code for response in responses}


HEAD = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
FORM = POST + "Content-Type: application/x-www-form-urlencoded\r\n"
CHUNKED = POST + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "header without a colon": HEAD + "Authorization {secret}\r\n\r\n",
    "header with a space in its name": HEAD + "Authorization : {secret}\r\n\r\n",
    "header over two lines": HEAD + "Authorization: Bearer\r\n {secret}\r\n\r\n",
    "header cut short": HEAD + "Authorization: Bearer {secret}",
    "body cut short": FORM + "Content-Length: 999\r\n\r\nphone={secret}",
    "body over its length": FORM + "Content-Length: 6\r\n\r\nphone={secret}\r\n",
    "chunk without a size": CHUNKED + "{secret}\r\n\r\n",
    "chunk over its size": CHUNKED + "2\r\n{secret}\r\n0\r\n\r\n",
    "chunk cut short": CHUNKED + "999\r\n{secret}",
}


def test_the_log_tells_no_secret(request, empty_database_url, service):
    person, values = Person(service, administrator=True), secret_values()
    assert send_good_and_bad(person, values) >= {200, 201, 400, 404, 405, 413, 415}
    client, unknown = service.test_client(), token_hex(32)
    for token in (unknown, unknown.upper(), f"{unknown}x", f"{unknown} {person.token}"):
        headers = {"Authorization": f"Bearer {token}"}
        assert client.open(PROFILES, method="POST", headers=headers).status_code == 405
        assert client.get(PROFILES, headers=headers).status_code == 401

    broken = {name: f"secret{token_hex(29)}" for name in BROKEN}
    path = f"{CREATE}?accountid={person.accountid}"
    for name, text in BROKEN.items():
        text = text.format(token=person.token, path=path, secret=broken[name])
        assert re.match(b"HTTP/1.1 4|$", exchange(service, text.encode())), name

    profileid = person.profiles()[0]["profileid"]
    writers = [lambda: person.create(values), lambda: person.update(profileid, values)]
    with locked(empty_database_url):
        assert_unavailable(*at_once(*writers), within=10)
    execute(empty_database_url, "ALTER TABLE profile RENAME TO elsewhere")
    responses = [*(write() for write in writers), person.get(PROFILES)]
    assert {response.status_code for response in responses} == {503}
    service.kill(signal.SIGTERM)
    log = service.log()
    assert "database unavailable" in log and "Shutting down" in log
    assert ("[DEBUG]" in log and "DEBUG:root:here" in log) is (
        "talkative" in request.node.name
    )
    hashes = [sha256(token.encode()).hexdigest() for token in (person.token, unknown)]
    secrets = person.token, unknown, *hashes, *values.values(), *broken.values()
    assert [secret for secret in secrets if secret in log] == []
