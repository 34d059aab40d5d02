"""One blueprint for each endpoint. A view is named after the operation it calls."""

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from flask import Blueprint, Response, current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict
from werkzeug.formparser import FormDataParser

import accounts
import profiles
import sessions
from callers import SessionCaller, find_caller, resolve_appid
from database import db
from errors import ServiceError
from formats import is_identifier
from lists import BATCH, Page, read_page
from models import MODELS, Resource, check_tables
from openapi import VERSION
from outages import is_outage, log_error, redact
from rows import Created
from turns import read_in_turns

View = Callable[[], ResponseReturnValue]

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
PAGING = ("all", "limit", "offset", "after")  # parameters that each list has
PREFIXES = {model.KEY: model.PREFIX for model in MODELS}
BLUEPRINTS: list[Blueprint] = []


def endpoint(method: str, path: str) -> Callable[[View], View]:
    """Decorate a view: register it on a blueprint of its own, named after it."""

    def add_blueprint(view: View) -> View:
        blueprint = Blueprint(view.__name__, __name__)
        blueprint.add_url_rule(path, view_func=view, methods=[method])
        BLUEPRINTS.append(blueprint)
        return view

    return add_blueprint


@endpoint("PATCH", "/api/user/update-profile")
def update_profile() -> ResponseReturnValue:
    caller, body = read_caller("profileid"), read_body()
    profileid = request.args.get("profileid")
    profile = profiles.update_profile(
        caller, profileid, body, appid=caller.appid, if_match=read_if_match()
    )
    return profile, entity_tag(profile)


@endpoint("POST", "/api/user/create-profile")
def create_profile() -> ResponseReturnValue:
    caller, body = read_caller("accountid"), read_body()
    accountid = request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    profile = profiles.create_profile(
        caller, accountid, body, appid=caller.appid, idempotency_key=key
    )
    return profile, creation_status(profile), entity_tag(profile)


@endpoint("GET", "/api/user/account")
def find_own_account() -> ResponseReturnValue:
    return call_operation(accounts.find_own_account, "accountid")


@endpoint("GET", "/api/user/profile")
def find_own_profile() -> ResponseReturnValue:
    profile = call_operation(profiles.find_own_profile, "profileid")
    return profile, entity_tag(profile)


@endpoint("GET", "/api/user/profiles")
def list_own_profiles() -> ResponseReturnValue:
    return send_list(profiles.list_own_profiles, "accountid", limited=True)


@endpoint("GET", "/api/user/sessions")
def list_own_sessions() -> ResponseReturnValue:
    filters = "accountid", "active"
    return send_list(sessions.list_own_sessions, *filters, limited=True)


@endpoint("PATCH", "/api/user/set-default-profile")
def set_default_profile() -> ResponseReturnValue:
    return call_operation(profiles.set_default_profile, "profileid")


@endpoint("DELETE", "/api/user/delete-profile")
def delete_profile() -> ResponseReturnValue:
    return call_operation(profiles.delete_profile, "profileid")


@endpoint("PATCH", "/api/user/end-session")
def end_session() -> ResponseReturnValue:
    caller = read_caller("sessionid")
    refuse_unknown_parameters("sessionid")
    # Without a sessionid, the session of the token that was sent.
    sessionid = request.args.get("sessionid") or caller.sessionid
    return sessions.end_session(caller, sessionid, appid=caller.appid)


@endpoint("GET", "/api/administrator/sessions")
def list_sessions() -> ResponseReturnValue:
    return send_list(sessions.list_sessions, "accountid", "active")


@endpoint("GET", "/api/administrator/profiles")
def list_profiles() -> ResponseReturnValue:
    return send_list(profiles.list_profiles, "accountid", "email")


@endpoint("GET", "/api/administrator/accounts")
def list_accounts() -> ResponseReturnValue:
    return send_list(accounts.list_accounts, "accountid")


@endpoint("POST", "/api/administrator/create-account")
def create_account() -> ResponseReturnValue:
    caller = read_caller()
    key = request.headers.get("Idempotency-Key")
    account = accounts.create_account(caller, appid=caller.appid, idempotency_key=key)
    request.environ["profiles.target"] = account["accountid"]
    return account, creation_status(account)


@endpoint("POST", "/api/administrator/create-session")
def create_session() -> ResponseReturnValue:
    caller, body = read_caller("accountid"), read_body()
    accountid = request.args.get("accountid")
    duration = body.get("duration", sessions.DEFAULT_DURATION)
    if duration is None:  # JSON's null is refused, as an empty string is
        duration = ""
    session = sessions.create_session(
        caller, accountid, appid=caller.appid, duration=duration
    )
    return session, 201


@endpoint("PATCH", "/api/administrator/end-sessions")
def end_sessions() -> ResponseReturnValue:
    return call_operation(sessions.end_sessions, "accountid")


@endpoint("DELETE", "/api/administrator/delete-account")
def delete_account() -> ResponseReturnValue:
    return call_operation(accounts.delete_account, "accountid")


HEALTHY = {"object": "health", "status": "ok"}


@endpoint("GET", "/health")
def health() -> ResponseReturnValue:
    check_tables()
    return HEALTHY


@endpoint("GET", "/live")
def live() -> ResponseReturnValue:
    return HEALTHY | {"version": VERSION}


def read_caller(parameter: str | None = None) -> SessionCaller:
    """Return the caller of the request, who may send its method.

    ``parameter``: the one that names what the request is about, which is logged. Raises
    invalid-appid, sign-in-required or read-only-token.
    """
    environ = request.environ  # gunicorn.conf.py logs the names that are set here
    if parameter:
        identifier = request.args.get(parameter)
        if is_identifier(PREFIXES[parameter], identifier):
            environ["profiles.target"] = identifier
    appid = resolve_appid(request.headers.get("X-Appid"))
    environ["profiles.appid"] = appid
    caller = find_caller(request.headers.get("Authorization"), appid)
    if not caller:
        raise ServiceError("sign-in-required")
    environ["profiles.account"] = caller.accountid
    environ["profiles.session"] = caller.sessionid
    if caller.reason:
        raise ServiceError("sign-in-required", reason=caller.reason)
    if caller.read_only and request.method not in ("GET", "HEAD"):
        raise ServiceError("read-only-token")
    return caller


def read_body() -> dict[str, Any]:
    """Return the body, a form or a JSON object, as a dictionary.

    Without a body the dictionary is empty. Raises body-too-large, invalid-body or
    unsupported-media-type.
    """
    data = request.environ["profiles.body"]
    if data is None:
        raise ServiceError("invalid-body")  # it broke off
    if len(data) > current_app.config["MAXIMUM_POST_DATA_LENGTH"]:
        raise ServiceError("body-too-large")
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


def parse_form(data: bytes) -> dict[str, str]:
    """Return the fields of a form, without its files.

    Raises ValueError for a form that is broken or not UTF-8. Flask's request.form would
    be empty, or would keep the bytes of another encoding as percent escapes.
    """
    if request.mimetype == URLENCODED:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, errors="strict")
        fields = MultiDict(pairs)
    else:
        # In memory, because nobody would close the temporary file of an upload.
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


def call_operation(operation: Callable[..., Resource], parameter: str) -> Resource:
    """Return what an operation returns for the caller and a parameter of the query."""
    caller = read_caller(parameter)
    return operation(caller, request.args.get(parameter), appid=caller.appid)


def refuse_unknown_parameters(*names: str) -> None:
    """Raise invalid-parameter if the query has another parameter than these."""
    unknown = request.args.keys() - set(names)
    if unknown:
        errors = dict.fromkeys(sorted(unknown), "invalid-parameter")
        raise ServiceError("invalid-parameter", errors=errors)


def read_if_match() -> list[str] | None:
    """Return each updatedAt that If-Match names, or None if any profile will do.

    A weak or malformed tag matches nothing (RFC 9110, section 13.1.1).
    """
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    tags = re.findall('(W/)?"([^"]*)"', header)
    return [tag for weak, tag in tags if not weak]


def entity_tag(profile: Resource) -> dict[str, str]:
    """Return the header that If-Match is compared with."""
    return {"ETag": f'"{profile["updatedAt"]}"'}


def creation_status(created: Created) -> int:
    """Return 201, or 200 if an earlier request with the same key has stored it."""
    return 201 if created.is_new else 200


def send_list(
    operation: Callable[..., Page | None], *filters: str, limited: bool = False
) -> ResponseReturnValue:
    """Return a page of what an operation lists or, with ``all``, all of it.

    ``filters``: the parameters that the list has in addition to PAGING. ``limited``:
    whether a page has few rows, so that a user's token can't fill the memory.
    """
    caller = read_caller("accountid")
    refuse_unknown_parameters(*filters, *PAGING)
    query = request.args.to_dict()
    arguments: dict[str, Any] = {name: query.get(name) for name in filters}
    arguments["after"] = query.get("after")
    arguments["limited"] = limited
    if query.get("all"):
        page = operation(caller, appid=caller.appid, limit=BATCH, **arguments)
        chunks = read_in_turns(json_chunks(page))
        return Response(chunks, mimetype="application/json")
    # An empty limit or offset counts as not given.
    arguments["limit"] = query.get("limit") or None
    arguments["offset"] = query.get("offset") or None
    page = operation(caller, appid=caller.appid, **arguments)
    response = current_app.json.response(page)
    if page and page.rest:
        response.headers["Link"] = link_after(str(page.rest.position))
    return response


def json_chunks(page: Page | None) -> Iterator[bytes]:
    """Yield the JSON of a page and all that follow it, page by page.

    An error can no longer become a response, so it is logged here.
    """
    if not page:
        yield b"null\n"
        return
    separator = b"["
    try:
        while page:
            chunk = separator + orjson.dumps(page)[1:-1]  # without its brackets
            rest = page.rest
            del page  # its rows take memory while a slow client reads the chunk
            yield chunk
            page = read_page(rest, BATCH) if rest else None
            separator = b","
    except Exception as error:
        request.environ["profiles.code"] = "internal-error"
        if is_outage(error):
            request.environ["profiles.code"] = "database-unavailable"
            db.expire()
        log_error(current_app.logger, error)
        raise redact(error) from None  # the server cuts the connection
    yield b"]\n"


def link_after(position: str) -> str:
    """Return the header that points to the page after a position."""
    parameters = {
        name: value
        for name, value in request.args.items()
        if value and name not in ("offset", "after")
    }
    parameters["after"] = position
    # A prefix is a host program's, or one that a proxy has stripped. Clients can send
    # this header, too, but it changes nothing except their own Link.
    prefix = request.root_path or request.headers.get("X-Forwarded-Prefix", "")
    prefix = quote(prefix.strip("/"), "/%")
    path = f"/{prefix}{request.path}" if prefix else request.path
    return f'<{path}?{urlencode(parameters)}>; rel="next"'
