"""One blueprint for each endpoint: HTTP in, one operation, JSON out.

Below them, a page of a listing is sent, and the caller and the body are read.
"""

from io import BytesIO
from urllib.parse import parse_qsl, quote, unquote, urlencode

import orjson
from flask import Blueprint, Response, request
from flask_swagger_ui import get_swaggerui_blueprint
from werkzeug.formparser import FormDataParser

import operations
from accounts import authenticate
from config import settings
from database import connection
from errors import ServiceError
from models import Profile, Session
from openapi import describe
from rows import read_tables

PAGING = ("accountid", "all", "limit", "offset", "after")

update_profile = Blueprint("update-profile", __name__)
create_profile = Blueprint("create-profile", __name__)
profiles = Blueprint("profiles", __name__)
sessions = Blueprint("sessions", __name__)
health = Blueprint("health", __name__)
description = Blueprint("description", __name__)
docs = get_swaggerui_blueprint(
    ".",  # relative to the page, as is the next: a prefix may precede it
    "../openapi.json",
    # No box for another address, no validator on the network, no repeated Host header.
    {"layout": "BaseLayout", "validatorUrl": None, "oauth2RedirectUrl": None},
)
docs.url_prefix = "/docs"  # where it is
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
    me = caller()
    fields = body()
    profileid = request.args.get("profileid")
    return operations.update_profile(me, profileid, fields, appid=me.appid)


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint():
    me = caller()
    fields = body()
    profile = operations.create_profile(
        me,
        request.args.get("accountid"),
        fields,
        appid=me.appid,
        idempotency_key=request.headers.get("Idempotency-Key"),
    )
    return profile, 201


@profiles.get("/api/administrator/profiles")
def profiles_endpoint():
    return page_response(Profile)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint():
    return page_response(Session)


@health.get("/health")
def health_endpoint():
    read_tables()
    return {"object": "health", "status": "ok"}


@description.get("/openapi.json")
def description_endpoint():
    return describe(settings())


@description.get("/")
@description.get("/docs")
def front_endpoint():
    """Redirect to the documentation by a relative address, without the Host header."""
    return Response(status=302, headers={"Location": "docs/"})


def page_response(model):
    """Return a page of a listing, with a link to the next. A long page is streamed."""
    me = caller()
    given = request.args
    query = {name: given[name] for name in PAGING if name in given}
    page = operations.read_listing(model, me, me.appid, **query)
    text = array_text(page.batches, request.environ)
    if isinstance(page.batches, list):  # it is read already, and has a length
        text = [*text]
    response = Response(text, mimetype="application/json")
    if page.next:
        kept = {name: query[name] for name in ("accountid", "limit") if query.get(name)}
        path = unquote(request.root_path + request.path)  # gunicorn's is encoded
        address = quote(path, "/:@!$&'()*+,;=~")
        parameters = urlencode({**kept, "after": page.next})
        response.headers["Link"] = f'<{address}?{parameters}>; rel="next"'
    return response


def array_text(batches, environ):
    """Return the text of one JSON array, a batch at a time; a failure cuts it short."""
    before = b"["
    try:
        for batch in batches:
            if batch:
                yield before + orjson.dumps(batch)[1:-1]
                before = b","
    except Exception as error:
        environ["profiles.code"] = getattr(error, "code", "internal-error")
        raise
    yield b"null\n" if before == b"[" else b"]\n"


def caller():
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    environ = request.environ  # where gunicorn.conf.py finds what the log shows
    appid = operations.appid_or_own(environ.get("HTTP_X_APPID"))
    environ["profiles.appid"] = appid
    with connection():
        found = authenticate(environ.get("HTTP_AUTHORIZATION"), appid)
    environ["profiles.account"] = found.accountid
    return found


def body():
    """Return the body: a form or a JSON object; none is an empty form.

    Raises invalid-body, body-too-large or unsupported-media-type.
    """
    data = read_body(settings()["MAXIMUM_POST_DATA_LENGTH"])
    if not data:
        return {}
    try:
        if request.mimetype == "application/x-www-form-urlencoded":
            return urlencoded_form(data)
        if request.mimetype == "multipart/form-data":
            return multipart_form(data)
        if request.is_json:
            return {} | orjson.loads(data)  # a TypeError when it is no object
    except (ValueError, TypeError) as error:
        raise ServiceError("invalid-body") from error
    raise ServiceError("unsupported-media-type")


def urlencoded_form(data):
    """Return the fields of a form; the first of a name counts."""
    form = {}
    pairs = parse_qsl(data.decode(), keep_blank_values=True, errors="strict")
    for name, value in pairs:
        form.setdefault(name, value)
    return form


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
