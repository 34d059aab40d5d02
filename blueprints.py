"""One blueprint for each endpoint: HTTP in, one operation, JSON out."""

from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from flask import Blueprint, Response, current_app, request, stream_with_context
from flask_swagger_ui import get_swaggerui_blueprint
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import MultiPartParser

import operations
from accounts import SignedIn, authenticate
from database import connection, db
from errors import ServiceError
from models import ListedModel, Profile, Session

JSON = "application/json"

update_profile = Blueprint("update-profile", __name__)
create_profile = Blueprint("create-profile", __name__)
profiles = Blueprint("profiles", __name__)
sessions = Blueprint("sessions", __name__)
health = Blueprint("health", __name__)
description = Blueprint("description", __name__)
docs: Blueprint = get_swaggerui_blueprint(
    base_url=".",  # both relative to the page, which may be under a prefix
    api_url="../openapi.json",
    # Without these two the page would ask a validator on the network, and repeat the Host header.
    config={"app_name": "Profiles", "validatorUrl": None, "oauth2RedirectUrl": None},
)
docs.url_prefix = "/docs"
BLUEPRINTS = (update_profile, create_profile, profiles, sessions, health, description, docs)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint() -> Response:
    """Update the configured fields of one of the caller's own profiles."""
    with connection():
        caller, profileid = sign_in(), request.args.get("profileid")
        profile = operations.update_profile(caller, profileid, body, appid=caller.appid)
    return json_response(profile)


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint() -> Response:
    """Create a profile for the caller's own account."""
    with connection():
        caller, accountid = sign_in(), request.args.get("accountid")
        profile = operations.create_profile(caller, accountid, body, appid=caller.appid)
    return json_response(profile, 201)


@profiles.get("/api/administrator/profiles")
def profiles_endpoint() -> Response:
    """List the application's profiles, newest first."""
    return listing(Profile)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint() -> Response:
    """List the application's sessions, newest first."""
    return listing(Session)


@health.get("/health")
def health_endpoint() -> Response:
    """Read each table, and so tell whether the service can serve requests."""
    with connection():
        for table in ("account", "profile", "session"):
            db.execute_sql(f"SELECT * FROM {table} LIMIT 1").fetchone()
    return json_response({"object": "health", "status": "ok"})


@description.get("/openapi.json")
def description_endpoint() -> Response:
    """Describe this deployment."""
    from openapi import describe  # not needed to serve, so not loaded to serve

    views, rules = current_app.view_functions, current_app.url_map.iter_rules()
    summaries = {rule.rule: views[rule.endpoint].__doc__ for rule in rules}
    return json_response(describe(operations.settings(), summaries))


@description.get("/")
@description.get("/docs")
def front_endpoint() -> Response:
    """Redirect to the documentation by a relative address, without the Host header."""
    return Response(status=302, headers={"Location": "docs/"})


@docs.before_request
def ignore_conditions() -> None:
    """Send each file whole. Answers are not stored, so conditions and ranges have no use."""
    for name in ("IF_MATCH", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE", "RANGE"):
        request.environ.pop(f"HTTP_{name}", None)


def sign_in() -> SignedIn:
    """Return the caller of the request. The log shows the account and the application."""
    environ = request.environ
    environ["profiles.appid"] = appid = operations.checked_appid(environ.get("HTTP_X_APPID"))
    caller = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = caller.accountid
    return caller


def body() -> Any:
    """Return the body: a form, or any JSON value; none is an empty form. Raises ServiceError."""
    try:
        text = whole_text()
        if not text:
            return {}
        if request.mimetype == "application/x-www-form-urlencoded":
            pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict")
            return dict(reversed(pairs))  # the first of a name counts
        if request.mimetype == "multipart/form-data":
            boundary = request.mimetype_params["boundary"].encode("ascii")
            parts = PlainParts(lambda *args, **kwargs: BytesIO())  # files are ignored
            form, _ = parts.parse(BytesIO(text), boundary, len(text))
            return {name: value.encode("latin-1").decode() for name, value in form.items()}
        if not request.is_json:
            raise ServiceError("unsupported-media-type")
        return orjson.loads(text)
    except RequestEntityTooLarge as error:
        raise ServiceError("body-too-large") from error
    except (ValueError, KeyError, ParseException) as error:  # the last: gunicorn's, of chunks
        raise ServiceError("invalid-body") from error


class PlainParts(MultiPartParser):
    """Keeps each byte of a text as one character, where Werkzeug replaces what is not UTF-8."""

    def get_part_charset(self, headers: Any) -> str:
        return "latin-1"


def whole_text() -> bytes:
    """Return the bytes of the body. gunicorn and Werkzeug may return a part without an error."""
    length, most = request.content_length or 0, request.max_content_length  # the setting + 1
    if length == most or len(text := request.get_data()) == most:
        raise ServiceError("body-too-large")
    if len(text) < length:  # the client sent less
        raise ServiceError("invalid-body")
    return text


def json_response(value: Any, status: int = 200) -> Response:
    """Return the value as JSON."""
    return Response(orjson.dumps(value), status, content_type=JSON)


def listing(model: ListedModel) -> Response:
    """Return a page as JSON, sent as it is read when it is long, with a link to the next."""
    query = request.args.to_dict()
    with connection():
        caller = sign_in()
        page = operations.list_page(model, caller, caller.appid, query)
    if page.rest:
        text = stream_with_context(array_text(chain([page.first], page.rest)))
        response = Response(text, content_type=JSON)
    else:
        response = json_response(page.first or None)
    if page.next:
        kept = {name: query[name] for name in ("accountid", "limit") if query.get(name)}
        link = urlencode({**kept, "after": page.next})
        response.headers["Link"] = f'<{request.root_path}{request.path}?{link}>; rel="next"'
    return response


def array_text(batches: Iterator[list[dict[str, Any]]]) -> Iterator[bytes]:
    """Return the text of one JSON array, a batch at a time; a failure cuts it short."""
    opening = b"["
    for batch in batches:
        yield opening + orjson.dumps(batch)[1:-1]
        opening = b","
    yield b"]"
