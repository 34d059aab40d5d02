"""One blueprint for each endpoint: HTTP in, one operation, JSON out; below, reading a request."""

from io import BytesIO
from itertools import chain
from urllib.parse import parse_qsl, urlencode

import orjson
from flask import Blueprint, Response, request, stream_with_context
from flask_swagger_ui import get_swaggerui_blueprint
from werkzeug.exceptions import HTTPException
from werkzeug.formparser import MultiPartParser

import operations
from accounts import authenticate
from config import settings
from database import connection
from errors import ServiceError
from models import Profile, Session
from openapi import describe
from rows import read_tables

JSON = "application/json"

update_profile = Blueprint("update-profile", __name__)
create_profile = Blueprint("create-profile", __name__)
profiles = Blueprint("profiles", __name__)
sessions = Blueprint("sessions", __name__)
health = Blueprint("health", __name__)
description = Blueprint("description", __name__)
docs = get_swaggerui_blueprint(
    ".",  # as the next one relative to the page, which may be under a prefix
    "../openapi.json",
    # No box for another address, no validator on the network, no repeated Host header.
    {"layout": "BaseLayout", "validatorUrl": None, "oauth2RedirectUrl": None},
)
docs.url_prefix = "/docs"
BLUEPRINTS = (
    update_profile,
    create_profile,
    profiles,
    sessions,
    health,
    description,
    docs,
)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint():
    me, fields, profileid = caller(), body(), request.args.get("profileid")
    return json_response(
        operations.update_profile(me, profileid, fields, appid=me.appid)
    )


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint():
    me, fields, accountid = caller(), body(), request.args.get("accountid")
    key = request.headers.get("Idempotency-Key")
    made = operations.create_profile(
        me, accountid, fields, appid=me.appid, idempotency_key=key
    )
    return json_response(made, 201)


@profiles.get("/api/administrator/profiles")
def profiles_endpoint():
    return page_response(Profile)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint():
    return page_response(Session)


@health.get("/health")
def health_endpoint():
    read_tables()
    return json_response({"object": "health", "status": "ok"})


@description.get("/openapi.json")
def description_endpoint():
    return json_response(describe(settings()))


@description.get("/")
@description.get("/docs")
def front_endpoint():
    """Redirect to the documentation by a relative address, without the Host header."""
    return Response(status=302, headers={"Location": "docs/"})


def json_response(value, status=200):
    """Return the value as JSON on a line of its own."""
    return Response(orjson.dumps(value) + b"\n", status, content_type=JSON)


def page_response(model):
    """Return a page as JSON, with a link to the next; a long one is sent as it is read."""
    me, query = caller(), request.args.to_dict()
    page = operations.read_listing(model, me, me.appid, query)
    if page.rest:
        text = stream_with_context(array_text(chain([page.first], page.rest)))
        return Response(text, content_type=JSON)
    response = json_response(page.first or None)
    if page.next:
        kept = {name: query[name] for name in ("accountid", "limit") if query.get(name)}
        link = urlencode({**kept, "after": page.next})
        response.headers["Link"] = (
            f'<{request.root_path}{request.path}?{link}>; rel="next"'
        )
    return response


def array_text(batches):
    """Return the text of one JSON array, a batch at a time; a failure cuts it short."""
    opening = b"["
    try:
        for batch in batches:
            yield opening + orjson.dumps(batch)[1:-1]
            opening = b","
    except Exception as error:
        request.environ["profiles.code"] = getattr(
            error, "code", "internal-error"
        )  # for the log
        raise
    yield b"]\n"


def caller():
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    environ = request.environ  # where gunicorn.conf.py finds what the log shows
    appid = operations.checked_appid(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    with connection():
        found = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = found.accountid
    return found


def body():
    """Return the body: a form or a JSON object; none is an empty form. Raises ServiceError."""
    text = whole_text(settings()["MAXIMUM_POST_DATA_LENGTH"])
    if not text:
        return {}
    try:
        if request.mimetype == "application/x-www-form-urlencoded":
            pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict")
            return dict(reversed(pairs))  # the first of a name counts
        if request.mimetype == "multipart/form-data":
            boundary = request.mimetype_params["boundary"].encode("ascii")
            parser = MultiPartParser(
                lambda *args, **kwargs: BytesIO()
            )  # files are ignored
            form = parser.parse(BytesIO(text), boundary, len(text))[0].to_dict()
            if "\ufffd" in "".join(
                form.values()
            ):  # by which Werkzeug replaces what is no UTF-8
                raise ServiceError("invalid-body")
            return form
        if request.is_json:
            return {} | orjson.loads(text)  # a TypeError when it is no object
    except (ValueError, KeyError, TypeError, RecursionError, HTTPException) as error:
        raise ServiceError("invalid-body") from error
    raise ServiceError("unsupported-media-type")


def whole_text(most):
    """Return the bytes of the body, at most so many. Raises ServiceError."""
    length = request.content_length or 0  # none of a chunked body
    try:
        text = b"" if length > most else request.stream.read(most + 1)
    except (
        Exception
    ) as error:  # the server's own, for what is cut short or has broken chunks
        raise ServiceError("invalid-body") from error
    if max(length, len(text)) > most:
        raise ServiceError("body-too-large")
    if len(text) < length:  # the client sent less
        raise ServiceError("invalid-body")
    return text
