"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Below them, a page of a listing is sent, and the caller and the body are read.
"""

from io import BytesIO
from itertools import chain
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from flask import Blueprint, Response, request
from werkzeug.formparser import FormDataParser

import operations
from accounts import authenticate
from config import appid_or_own, settings
from errors import ServiceError
from models import Profile, Session
from rows import read_tables
from validators import is_identifier

PAGING = ("accountid", "all", "limit", "offset", "after")

BLUEPRINTS = []


def endpoint(method, path):
    """Decorate a view. It gets a blueprint of its own, named by the end of the path."""
    blueprint = Blueprint(path.rpartition("/")[2], __name__)
    BLUEPRINTS.append(blueprint)
    return blueprint.route(path, methods=[method])


@endpoint("PATCH", "/api/user/update-profile")
def update_profile_endpoint():
    me = caller()
    fields = body()
    profileid = request.args.get("profileid")
    return operations.update_profile(me, profileid, fields, appid=me.appid)


@endpoint("POST", "/api/user/create-profile")
def create_profile_endpoint():
    me = caller()
    fields = body()
    accountid = request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    profile = operations.create_profile(
        me, accountid, fields, appid=me.appid, idempotency_key=key
    )
    return profile, 201


@endpoint("GET", "/api/administrator/profiles")
def profiles_endpoint():
    return page_response(Profile)


@endpoint("GET", "/api/administrator/sessions")
def sessions_endpoint():
    return page_response(Session)


@endpoint("POST", "/api/administrator/create-account")
def create_account_endpoint():
    me = caller()
    key = request.headers.get("Idempotency-Key")
    account = operations.create_account(me, appid=me.appid, idempotency_key=key)
    request.environ["profiles.target"] = account["accountid"]
    return account, 201


@endpoint("POST", "/api/administrator/create-session")
def create_session_endpoint():
    me = caller()
    duration = body().get("duration")
    accountid = target(me)
    session = operations.create_session(
        me, accountid, appid=me.appid, duration=duration
    )
    return session, 201


@endpoint("PATCH", "/api/administrator/end-sessions")
def end_sessions_endpoint():
    me = caller()
    return operations.end_sessions(me, target(me), appid=me.appid)


@endpoint("DELETE", "/api/administrator/delete-account")
def delete_account_endpoint():
    me = caller()
    return operations.delete_account(me, target(me), appid=me.appid)


@endpoint("GET", "/health")
def health_endpoint():
    read_tables()
    return {"object": "health", "status": "ok"}


def page_response(model):
    """Return a page of a listing, with a link to the next. A long page is streamed."""
    me = caller()
    given = request.args.items()
    query = {name: value for name, value in given if value and name in PAGING}
    page = operations.read_listing(model, me, me.appid, **query)
    text = array_text(page, request.environ)
    response = Response(text if page.rest else [*text], mimetype="application/json")
    if page.rest:
        response.call_on_close(page.rest.close)  # the client may not read it all
    if page.next:
        kept = {name: query[name] for name in ("accountid", "limit") if name in query}
        path = quote(request.root_path + request.path, "/%")  # a prefix is encoded
        parameters = urlencode({**kept, "after": page.next})
        response.headers["Link"] = f'<{path}?{parameters}>; rel="next"'
    return response


def array_text(page, environ):
    """Yield the text of a page, a batch at a time; a failure cuts it short."""
    before = b"["
    try:
        for batch in filter(None, chain([page.first], page.rest)):
            yield before + orjson.dumps(batch)[1:-1]
            before = b","
    except Exception as error:
        environ["profiles.code"] = getattr(error, "code", "internal-error")
        raise
    yield b"null\n" if before == b"[" else b"]\n"


def caller():
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    environ = request.environ  # where gunicorn.conf.py finds what the log shows
    appid = appid_or_own(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    found = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = found.accountid
    return found


def target(me):
    """Return the accountid that the request names; the log shows an administrator's."""
    accountid = request.args.get("accountid")
    if me.administrator and is_identifier("acct", accountid):
        request.environ["profiles.target"] = accountid
    return accountid


def body():
    """Return the body: a form or a JSON object; none is an empty form.

    Raises invalid-body, body-too-large or unsupported-media-type.
    """
    data = read_body(settings()["MAXIMUM_POST_DATA_LENGTH"])
    if not data:
        return {}
    try:
        if request.mimetype == "application/x-www-form-urlencoded":
            pairs = parse_qsl(data.decode(), keep_blank_values=True, errors="strict")
            found = dict(reversed(pairs))  # the first of a name counts
        elif request.mimetype == "multipart/form-data":
            found = multipart_form(data)
        elif request.is_json:
            found = orjson.loads(data)
        else:
            raise ServiceError("unsupported-media-type")
    except ValueError as error:
        raise ServiceError("invalid-body") from error
    if not isinstance(found, dict):
        raise ServiceError("invalid-body")
    return found


def multipart_form(data):
    """Return the fields of a form without its files; the first of a name counts."""
    parser = FormDataParser(lambda *args, **options: BytesIO(), silent=False)
    _, fields, _ = parser.parse(
        BytesIO(data), request.mimetype, len(data), request.mimetype_params
    )
    form = fields.to_dict()
    if "\ufffd" in "".join(form.values()):  # Werkzeug's, for what is no UTF-8
        raise ServiceError("invalid-body")
    return form


def read_body(most):
    """Return the bytes of the body, at most so many.

    Raises body-too-large, or invalid-body if the client sent less than it said.
    """
    length = request.content_length or 0  # none of a chunked body
    try:
        data = b"" if length > most else request.stream.read(most + 1)
    except Exception as error:  # the server's own, for what is cut short or broken
        raise ServiceError("invalid-body") from error
    if max(length, len(data)) > most:
        raise ServiceError("body-too-large")
    if len(data) < length:
        raise ServiceError("invalid-body")
    return data
