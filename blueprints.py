"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Helpers for listings and the caller are at the end; body.py reads the body.
"""

import re
from urllib.parse import quote, urlencode

import orjson
from flask import Blueprint, Response, current_app, request
from werkzeug.exceptions import HTTPException

import operations
from accounts import authenticate, resolve_appid
from body import read_body
from errors import ServiceError
from models import Account, Profile, Session, check_tables
from outages import is_outage, log_error, redact
from rows import select_all, select_page
from validators import is_identifier

update_profile_blueprint = Blueprint("update-profile", __name__)


@update_profile_blueprint.patch("/api/user/update-profile")
def update_profile_endpoint():
    caller, body = read_caller_and_body()
    profileid = request.args.get("profileid")
    profile = operations.update_profile(
        caller, profileid, body, appid=caller.appid, if_match=read_if_match()
    )
    return profile, entity_tag(profile)


create_profile_blueprint = Blueprint("create-profile", __name__)


@create_profile_blueprint.post("/api/user/create-profile")
def create_profile_endpoint():
    caller, body = read_caller_and_body()
    accountid = request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    profile, is_new = operations.get_or_create_profile(
        caller, accountid, body, caller.appid, idempotency_key=key
    )
    return profile, 201 if is_new else 200, entity_tag(profile)


own_account_blueprint = Blueprint("own-account", __name__)


@own_account_blueprint.get("/api/user/account")
def own_account_endpoint():
    return call_own(operations.find_own_account, "accountid")


own_profile_blueprint = Blueprint("own-profile", __name__)


@own_profile_blueprint.get("/api/user/profile")
def own_profile_endpoint():
    profile = call_own(operations.find_own_profile, "profileid")
    return profile, entity_tag(profile)


own_profiles_blueprint = Blueprint("own-profiles", __name__)


@own_profiles_blueprint.get("/api/user/profiles")
def own_profiles_endpoint():
    return send_listing(operations.own_listing, Profile)


own_sessions_blueprint = Blueprint("own-sessions", __name__)


@own_sessions_blueprint.get("/api/user/sessions")
def own_sessions_endpoint():
    return send_listing(operations.own_listing, Session, "active")


set_default_profile_blueprint = Blueprint("set-default-profile", __name__)


@set_default_profile_blueprint.patch("/api/user/set-default-profile")
def set_default_profile_endpoint():
    return call_own(operations.set_default_profile, "profileid")


delete_profile_blueprint = Blueprint("delete-profile", __name__)


@delete_profile_blueprint.delete("/api/user/delete-profile")
def delete_profile_endpoint():
    return call_own(operations.delete_profile, "profileid")


end_session_blueprint = Blueprint("end-session", __name__)


@end_session_blueprint.patch("/api/user/end-session")
def end_session_endpoint():
    caller = read_caller()
    # Without a sessionid, the session of the token that was sent.
    sessionid = request.args.get("sessionid") or caller.sessionid
    return operations.end_session(caller, sessionid, appid=caller.appid)


sessions_blueprint = Blueprint("sessions", __name__)


@sessions_blueprint.get("/api/administrator/sessions")
def sessions_endpoint():
    return send_listing(operations.application_listing, Session, "active")


profiles_blueprint = Blueprint("profiles", __name__)


@profiles_blueprint.get("/api/administrator/profiles")
def profiles_endpoint():
    return send_listing(operations.application_listing, Profile, "email")


accounts_blueprint = Blueprint("accounts", __name__)


@accounts_blueprint.get("/api/administrator/accounts")
def accounts_endpoint():
    return send_listing(operations.application_listing, Account)


create_account_blueprint = Blueprint("create-account", __name__)


@create_account_blueprint.post("/api/administrator/create-account")
def create_account_endpoint():
    caller = read_caller()
    key = request.headers.get("Idempotency-Key")
    account, is_new = operations.get_or_create_account(caller, caller.appid, key)
    request.environ["profiles.target"] = account["accountid"]
    return account, 201 if is_new else 200


create_session_blueprint = Blueprint("create-session", __name__)


@create_session_blueprint.post("/api/administrator/create-session")
def create_session_endpoint():
    caller, body = read_caller_and_body()
    accountid = read_target(caller)
    session = operations.create_session(
        caller, accountid, appid=caller.appid, duration=body.get("duration")
    )
    return session, 201


end_sessions_blueprint = Blueprint("end-sessions", __name__)


@end_sessions_blueprint.patch("/api/administrator/end-sessions")
def end_sessions_endpoint():
    caller = read_caller()
    return operations.end_sessions(caller, read_target(caller), appid=caller.appid)


delete_account_blueprint = Blueprint("delete-account", __name__)


@delete_account_blueprint.delete("/api/administrator/delete-account")
def delete_account_endpoint():
    caller = read_caller()
    return operations.delete_account(caller, read_target(caller), appid=caller.appid)


HEALTHY = {"object": "health", "status": "ok"}
health_blueprint = Blueprint("health", __name__)


@health_blueprint.get("/health")
def health_endpoint():
    check_tables()
    return HEALTHY


live_blueprint = Blueprint("live", __name__)


@live_blueprint.get("/live")
def live_endpoint():
    return HEALTHY


BLUEPRINTS = (
    update_profile_blueprint,
    create_profile_blueprint,
    own_account_blueprint,
    own_profile_blueprint,
    own_profiles_blueprint,
    own_sessions_blueprint,
    set_default_profile_blueprint,
    delete_profile_blueprint,
    end_session_blueprint,
    sessions_blueprint,
    profiles_blueprint,
    accounts_blueprint,
    create_account_blueprint,
    create_session_blueprint,
    end_sessions_blueprint,
    delete_account_blueprint,
    health_blueprint,
    live_blueprint,
)


def call_own(operation, parameter):
    """Return the result of an operation on the caller's own row.

    ``parameter``: the name of the query's parameter that holds the row's identifier.
    """
    caller = read_caller()
    return operation(caller, request.args.get(parameter), appid=caller.appid)


def send_listing(find_listing, model, *filters):
    """Return a response with a page of a listing, or with ``all`` of it.

    ``find_listing``: the operations' function that returns the Listing of the model's
    rows. ``filters``: the names of the parameters that it takes, too.
    """
    query = request.args
    caller = read_caller()
    values = {name: query.get(name) for name in filters}
    accountid = query.get("accountid")
    listing = find_listing(model, caller, accountid, caller.appid, **values)
    after = query.get("after")
    if query.get("all"):
        return send_all(select_all(listing, after))
    limit = query.get("limit") or None
    offset = query.get("offset") or None
    objects, next_after = select_page(listing, limit, offset, after)
    return send_page(objects, next_after)


def send_page(objects, next_after):
    """Return a page as JSON, with a link to the next page, if there is one."""
    body = orjson.dumps(objects or None) + b"\n"
    response = Response(body, mimetype="application/json")
    if next_after:
        parameters = {}
        for name in ("accountid", "email", "active", "limit"):
            if value := request.args.get(name):
                parameters[name] = value
        parameters["after"] = next_after
        # A prefix is a host program's, or one that a proxy has stripped. Clients can
        # send this header, too, but it changes nothing except their own Link.
        stripped = request.headers.get("X-Forwarded-Prefix", "").rstrip("/")
        path = quote((request.root_path or stripped) + request.path, "/%")
        response.headers["Link"] = f'<{path}?{urlencode(parameters)}>; rel="next"'
    return response


def send_all(batches):
    """Return the objects of all batches as JSON, which is sent batch by batch."""
    chunks = json_chunks(batches)
    first = next(chunks)  # an error here can still become a response
    app = current_app._get_current_object()
    body = log_late_error(first, chunks, app, request.environ)
    return Response(body, mimetype="application/json")


def json_chunks(batches):
    """Yield the JSON of all objects of the batches, or null if there are none."""
    separator = b"["
    for objects in batches:
        yield separator + orjson.dumps(objects)[1:-1]  # without its brackets
        separator = b","
    yield b"null\n" if separator == b"[" else b"]\n"


def log_late_error(first, chunks, app, environ):
    """Yield the chunks. Log an error, which can no longer become a response."""
    yield first
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
    appid = resolve_appid(request.headers.get("X-Appid"))
    environ["profiles.appid"] = appid
    caller = authenticate(request.headers.get("Authorization"), appid)
    environ["profiles.account"] = caller.accountid
    environ["profiles.session"] = caller.sessionid
    return caller


def read_caller_and_body():
    """Return the caller and the body of the request.

    The body is received before the token is looked up, because the token may be ended
    while a body trickles in. What is wrong with the caller is reported first. Raises
    what read_caller() and read_body() raise.
    """
    try:
        body = read_body()
    except (ServiceError, HTTPException):
        read_caller()
        raise
    return read_caller(), body


def read_if_match():
    """Return each updatedAt that If-Match names, or None if any profile will do.

    A weak or malformed tag matches nothing (RFC 9110, section 13.1.1).
    """
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    tags = [tag.strip() for tag in header.split(",")]
    return [tag[1:-1] for tag in tags if re.fullmatch('"[^"]*"', tag)]


def entity_tag(profile):
    """Return the header that If-Match is compared with."""
    return {"ETag": f'"{profile["updatedAt"]}"'}


def read_target(caller):
    """Return the accountid that the request names; log it for an administrator."""
    accountid = request.args.get("accountid")
    if caller.administrator and is_identifier("acct", accountid):
        request.environ["profiles.target"] = accountid
    return accountid
