"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Below them, a listing is sent, and the caller and the body are read.
"""

from io import BytesIO
from itertools import chain
from urllib.parse import quote, urlencode

import orjson
from flask import Blueprint, Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

import operations
from accounts import authenticate, resolve_appid
from database import OUTAGES
from errors import ServiceError
from models import Profile, Session, check_tables
from validators import is_identifier

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
PAGING = "accountid all limit offset after".split()

BLUEPRINTS = []


def endpoint(method, path):
    """Decorate a view. It gets its own blueprint, named after its path."""
    blueprint = Blueprint(path, __name__)
    BLUEPRINTS.append(blueprint)
    return blueprint.route(path, methods=[method])


@endpoint("PATCH", "/api/user/update-profile")
def update_profile_endpoint():
    caller = read_caller()
    body = read_body()
    profileid = request.args.get("profileid")
    return operations.update_profile(caller, profileid, body, appid=caller.appid)


@endpoint("POST", "/api/user/create-profile")
def create_profile_endpoint():
    caller = read_caller()
    body = read_body()
    accountid = request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    profile = operations.create_profile(
        caller, accountid, body, appid=caller.appid, idempotency_key=key
    )
    return profile, 201


@endpoint("GET", "/api/administrator/profiles")
def profiles_endpoint():
    return send_listing(Profile)


@endpoint("GET", "/api/administrator/sessions")
def sessions_endpoint():
    return send_listing(Session)


@endpoint("POST", "/api/administrator/create-account")
def create_account_endpoint():
    caller = read_caller()
    key = request.headers.get("Idempotency-Key")
    account = operations.create_account(caller, appid=caller.appid, idempotency_key=key)
    request.environ["profiles.target"] = account["accountid"]
    return account, 201


@endpoint("POST", "/api/administrator/create-session")
def create_session_endpoint():
    caller = read_caller()
    duration = read_body().get("duration")
    accountid = read_target(caller)
    session = operations.create_session(
        caller, accountid, appid=caller.appid, duration=duration
    )
    return session, 201


@endpoint("PATCH", "/api/administrator/end-sessions")
def end_sessions_endpoint():
    caller = read_caller()
    return operations.end_sessions(caller, read_target(caller), appid=caller.appid)


@endpoint("DELETE", "/api/administrator/delete-account")
def delete_account_endpoint():
    caller = read_caller()
    return operations.delete_account(caller, read_target(caller), appid=caller.appid)


@endpoint("GET", "/health")
def health_endpoint():
    check_tables()
    return {"object": "health", "status": "ok"}


def send_listing(model):
    """Return a listing: a page with a link to the next one, or all rows in parts."""
    caller = read_caller()
    given = request.args
    query = {name: given.get(name) or None for name in PAGING}
    batches, next_after = operations.open_listing(
        model, caller, appid=caller.appid, **query
    )
    parts = json_parts(batches, request.environ)
    # The first part is read now: an error here can still become a response.
    body = chain([next(parts)], parts)
    response = Response(body if query["all"] else [*body], mimetype="application/json")
    if next_after:
        query |= {"offset": None, "after": next_after}
        parameters = {name: value for name, value in query.items() if value}
        path = quote(request.root_path + request.path, "/%")  # root_path is a prefix
        response.headers["Link"] = f'<{path}?{urlencode(parameters)}>; rel="next"'
    return response


def json_parts(batches, environ):
    """Yield the JSON of all objects of the batches, or null when there are none."""
    separator = b"["
    try:
        for objects in batches:
            if objects:
                yield separator + orjson.dumps(objects)[1:-1]
                separator = b","
    except Exception as error:
        code = (
            "database-unavailable" if isinstance(error, OUTAGES) else "internal-error"
        )
        environ["profiles.code"] = code  # for the log: the status may have been sent
        raise
    yield b"null\n" if separator == b"[" else b"]\n"


def read_caller():
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    environ = request.environ  # gunicorn.conf.py logs the names that are set here
    appid = resolve_appid(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    caller = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = caller.accountid
    return caller


def read_target(caller):
    """Return the accountid that the request names.

    If the caller is an administrator, the log shows it.
    """
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
        elif request.mimetype in FORM_TYPES:
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

    Raises ValueError for a broken form, where Flask's request.form would be empty.
    """
    parser = FormDataParser(lambda *args, **options: BytesIO(), silent=False)
    _, fields, _ = parser.parse(
        BytesIO(data), request.mimetype, len(data), request.mimetype_params
    )
    form = fields.to_dict()  # the first value of a name counts
    # Werkzeug puts U+FFFD in the place of bytes of a multipart form that are not UTF-8.
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
    # The limit is one byte above the setting (see app.py), because Flask cuts a chunked
    # body at the limit without an error.
    if len(data) == request.max_content_length:
        raise RequestEntityTooLarge
    if len(data) < (request.content_length or 0):
        raise ServiceError("invalid-body")
    return data
