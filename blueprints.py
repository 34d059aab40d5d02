"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Helpers for listings, the caller and the body are at the end.
"""

from io import BytesIO
from itertools import chain
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from flask import Blueprint, Response, current_app, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

import operations
from accounts import authenticate, resolve_appid
from config import settings
from database import is_outage, log_error, redact
from errors import ServiceError
from models import Profile, Session, check_tables
from validators import is_identifier

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

update_profile = Blueprint("update-profile", __name__)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint():
    caller = read_caller()
    body = read_body()
    profileid = request.args.get("profileid")
    return operations.update_profile(caller, profileid, body, appid=caller.appid)


create_profile = Blueprint("create-profile", __name__)


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint():
    caller = read_caller()
    body = read_body()
    accountid = request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    profile = operations.create_profile(
        caller, accountid, body, appid=caller.appid, idempotency_key=key
    )
    return profile, 201


own_account = Blueprint("own-account", __name__)


@own_account.get("/api/user/account")
def own_account_endpoint():
    caller = read_caller()
    accountid = request.args.get("accountid")
    return operations.find_own_account(caller, accountid, appid=caller.appid)


own_profile = Blueprint("own-profile", __name__)


@own_profile.get("/api/user/profile")
def own_profile_endpoint():
    caller = read_caller()
    profileid = request.args.get("profileid")
    return operations.find_own_profile(caller, profileid, appid=caller.appid)


own_profiles = Blueprint("own-profiles", __name__)


@own_profiles.get("/api/user/profiles")
def own_profiles_endpoint():
    caller = read_caller()
    accountid = request.args.get("accountid")
    return send_listing(operations.own_listing(caller, accountid, caller.appid))


sessions = Blueprint("sessions", __name__)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint():
    return send_application_listing(Session)


profiles = Blueprint("profiles", __name__)


@profiles.get("/api/administrator/profiles")
def profiles_endpoint():
    return send_application_listing(Profile)


create_account = Blueprint("create-account", __name__)


@create_account.post("/api/administrator/create-account")
def create_account_endpoint():
    caller = read_caller()
    key = request.headers.get("Idempotency-Key")
    account = operations.create_account(caller, appid=caller.appid, idempotency_key=key)
    request.environ["profiles.target"] = account["accountid"]
    return account, 201


create_session = Blueprint("create-session", __name__)


@create_session.post("/api/administrator/create-session")
def create_session_endpoint():
    caller = read_caller()
    duration = read_body().get("duration")
    accountid = read_target(caller)
    session = operations.create_session(
        caller, accountid, appid=caller.appid, duration=duration
    )
    return session, 201


end_sessions = Blueprint("end-sessions", __name__)


@end_sessions.patch("/api/administrator/end-sessions")
def end_sessions_endpoint():
    caller = read_caller()
    return operations.end_sessions(caller, read_target(caller), appid=caller.appid)


delete_account = Blueprint("delete-account", __name__)


@delete_account.delete("/api/administrator/delete-account")
def delete_account_endpoint():
    caller = read_caller()
    return operations.delete_account(caller, read_target(caller), appid=caller.appid)


health = Blueprint("health", __name__)


@health.get("/health")
def health_endpoint():
    check_tables()
    return {"object": "health", "status": "ok"}


BLUEPRINTS = (
    update_profile,
    create_profile,
    own_account,
    own_profile,
    own_profiles,
    sessions,
    profiles,
    create_account,
    create_session,
    end_sessions,
    delete_account,
    health,
)


def send_application_listing(model):
    """Return a response with the listing of an administrator."""
    caller = read_caller()
    accountid = request.args.get("accountid")
    listing = operations.application_listing(model, caller, caller.appid, accountid)
    return send_listing(listing)


def send_listing(listing):
    """Return a response with a page of the listing, or with all of it."""
    query = request.args
    after = query.get("after")
    if query.get("all"):
        return send_all(operations.read_all(listing, after))
    limit = query.get("limit") or None
    offset = query.get("offset") or None
    objects, next_after = operations.read_page(listing, limit, offset, after)
    return send_page(objects, next_after)


def send_page(objects, next_after):
    """Return a page as JSON, with a link to the next page, if there is one."""
    body = orjson.dumps(objects or None) + b"\n"
    response = Response(body, mimetype="application/json")
    if next_after:
        parameters = {}
        for name in ("accountid", "limit"):
            if value := request.args.get(name):
                parameters[name] = value
        parameters["after"] = next_after
        path = quote(request.root_path + request.path, "/%")  # root_path: a prefix
        response.headers["Link"] = f'<{path}?{urlencode(parameters)}>; rel="next"'
    return response


def send_all(batches):
    """Return the objects of all batches as JSON, which is sent batch by batch."""
    chunks = json_chunks(batches)
    # Read the first chunk now: an error here can still become a response.
    first = next(chunks)
    app = current_app._get_current_object()
    body = chain([first], log_late_error(chunks, app, request.environ))
    return Response(body, mimetype="application/json")


def json_chunks(batches):
    """Yield the JSON of all objects of the batches, or null if there are none."""
    separator = b"["
    for objects in batches:
        yield separator + orjson.dumps(objects)[1:-1]
        separator = b","
    yield b"null\n" if separator == b"[" else b"]\n"


def log_late_error(chunks, app, environ):
    """Yield the chunks. Log an error, which can no longer become a response."""
    try:
        yield from chunks
    except Exception as error:
        code = "database-unavailable" if is_outage(error) else "internal-error"
        environ["profiles.code"] = code
        with app.request_context(environ):  # for the request_id of the line
            log_error(app.logger, error)
        raise redact(error) from None  # the server cuts the connection


def read_caller():
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    environ = request.environ  # gunicorn.conf.py logs the names that are set here
    appid = resolve_appid(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    caller = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = caller.accountid
    environ["profiles.session"] = caller.sessionid
    return caller


def read_target(caller):
    """Return the accountid that the request names; log it for an administrator."""
    accountid = request.args.get("accountid")
    if caller.administrator and is_identifier("acct", accountid):
        request.environ["profiles.target"] = accountid
    return accountid


def read_body():
    """Return the body, a form or a JSON object, as a dictionary.

    Without a body the dictionary is empty. Raises invalid-body, unsupported-media-type
    or Werkzeug's RequestEntityTooLarge.
    """
    data = read_bytes()
    if not data:
        return {}
    try:
        if request.is_json:
            body = orjson.loads(data)
        elif request.mimetype in (URLENCODED, MULTIPART):
            body = parse_form(data)
        else:
            raise ServiceError("unsupported-media-type")
        if not isinstance(body, dict):
            raise ValueError
    except ValueError as error:
        raise ServiceError("invalid-body") from error
    return body


def parse_form(data):
    """Return the fields of a form, without its files.

    Raises ValueError for a form that is broken or not UTF-8. Flask's request.form would
    be empty, or would keep the bytes of another encoding as percent escapes.
    """
    if request.mimetype == URLENCODED:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, errors="strict")
        fields = MultiDict(pairs)
    else:
        parser = FormDataParser(lambda *args, **kwargs: BytesIO(), silent=False)
        _, fields, _ = parser.parse(
            BytesIO(data), request.mimetype, len(data), request.mimetype_params
        )
    form = fields.to_dict()  # the first value of a name counts
    # Werkzeug replaces multipart bytes that are not UTF-8 with U+FFFD, so it is refused
    # in every form.
    if "\ufffd" in "".join(form.values()):
        raise ValueError
    return form


def read_bytes():
    """Return the bytes of the body. Raises invalid-body or RequestEntityTooLarge."""
    try:
        data = request.get_data()
    except RequestEntityTooLarge:
        raise
    except Exception as error:  # the server's own, for a body that it cannot read
        raise ServiceError("invalid-body") from error
    # Flask's own limit is one byte higher (see app.py), because Flask cuts a chunked
    # body at its limit without an error.
    if len(data) > settings()["MAXIMUM_POST_DATA_LENGTH"]:
        raise RequestEntityTooLarge
    if len(data) < (request.content_length or 0):
        raise ServiceError("invalid-body")
    return data
