"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Helpers for listings and the caller are at the end; body.py reads the body.
"""

import re
from urllib.parse import quote, urlencode

import orjson
from flask import Blueprint, Response, current_app, request

import operations
from accounts import authenticate, resolve_appid
from body import read_body
from database import is_outage, log_error, redact
from models import Account, Profile, Session, check_tables
from rows import select_all, select_page
from validators import is_identifier

update_profile = Blueprint("update-profile", __name__)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint():
    caller = read_caller()
    body = read_body()
    profileid = request.args.get("profileid")
    profile = operations.update_profile(
        caller, profileid, body, appid=caller.appid, if_match=read_if_match()
    )
    return profile, entity_tag(profile)


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
    return profile, 201, entity_tag(profile)


own_account = Blueprint("own-account", __name__)


@own_account.get("/api/user/account")
def own_account_endpoint():
    return call_own(operations.find_own_account, "accountid")


own_profile = Blueprint("own-profile", __name__)


@own_profile.get("/api/user/profile")
def own_profile_endpoint():
    profile = call_own(operations.find_own_profile, "profileid")
    return profile, entity_tag(profile)


own_profiles = Blueprint("own-profiles", __name__)


@own_profiles.get("/api/user/profiles")
def own_profiles_endpoint():
    return send_listing(operations.own_listing, Profile)


own_sessions = Blueprint("own-sessions", __name__)


@own_sessions.get("/api/user/sessions")
def own_sessions_endpoint():
    return send_listing(operations.own_listing, Session)


set_default_profile = Blueprint("set-default-profile", __name__)


@set_default_profile.patch("/api/user/set-default-profile")
def set_default_profile_endpoint():
    return call_own(operations.set_default_profile, "profileid")


delete_profile = Blueprint("delete-profile", __name__)


@delete_profile.delete("/api/user/delete-profile")
def delete_profile_endpoint():
    return call_own(operations.delete_profile, "profileid")


end_session = Blueprint("end-session", __name__)


@end_session.patch("/api/user/end-session")
def end_session_endpoint():
    caller = read_caller()
    # Without a sessionid, the session of the token that was sent.
    sessionid = request.args.get("sessionid") or caller.sessionid
    return operations.end_session(caller, sessionid, appid=caller.appid)


sessions = Blueprint("sessions", __name__)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint():
    return send_listing(operations.application_listing, Session)


profiles = Blueprint("profiles", __name__)


@profiles.get("/api/administrator/profiles")
def profiles_endpoint():
    email = request.args.get("email")
    return send_listing(operations.application_listing, Profile, email=email)


accounts = Blueprint("accounts", __name__)


@accounts.get("/api/administrator/accounts")
def accounts_endpoint():
    return send_listing(operations.application_listing, Account)


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


HEALTHY = {"object": "health", "status": "ok"}
health = Blueprint("health", __name__)


@health.get("/health")
def health_endpoint():
    check_tables()
    return HEALTHY


live = Blueprint("live", __name__)


@live.get("/live")
def live_endpoint():
    return HEALTHY


BLUEPRINTS = (
    update_profile,
    create_profile,
    own_account,
    own_profile,
    own_profiles,
    own_sessions,
    set_default_profile,
    delete_profile,
    end_session,
    sessions,
    profiles,
    accounts,
    create_account,
    create_session,
    end_sessions,
    delete_account,
    health,
    live,
)


def call_own(operation, parameter):
    """Return the result of an operation on the caller's own row.

    ``parameter``: the name of the query's parameter that holds the row's identifier.
    """
    caller = read_caller()
    return operation(caller, request.args.get(parameter), appid=caller.appid)


def send_listing(find, model, **filters):
    """Return a response with a page of a listing, or with ``all`` of it.

    ``find``: the operations' function that returns the Listing of the model's rows.
    """
    query = request.args
    caller = read_caller()
    listing = find(model, caller, query.get("accountid"), caller.appid, **filters)
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
        for name in ("accountid", "email", "limit"):
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
        yield separator + orjson.dumps(objects)[1:-1]
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
    appid = resolve_appid(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    caller = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = caller.accountid
    environ["profiles.session"] = caller.sessionid
    return caller


def read_if_match():
    """Return each updatedAt that If-Match names, or None if any profile will do.

    A weak or malformed tag matches nothing (RFC 9110, section 13.1.1).
    """
    header = request.environ.get("HTTP_IF_MATCH", "*").strip()
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
