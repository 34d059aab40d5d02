"""One blueprint for each endpoint: HTTP in, one operation, JSON out."""

from collections.abc import Iterator
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Blueprint, Response, current_app, request, stream_with_context
from flask_swagger_ui import get_swaggerui_blueprint

import operations
from config import settings
from database import connection
from errors import ServiceError
from incoming import body, caller, note
from models import ListedModel, Profile, Session
from openapi import describe
from tables import db

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
    config={
        "app_name": "Profiles",
        "layout": "BaseLayout",  # without a box for another address
        "validatorUrl": None,  # or the page would ask one on the network
        "oauth2RedirectUrl": None,  # or it would repeat the Host header
    },
)
docs.url_prefix = "/docs"
BLUEPRINTS = (update_profile, create_profile, profiles, sessions, health, description, docs)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint() -> Response:
    """Update the configured fields of one of the caller's own profiles."""
    with connection():
        me, profileid = caller(), request.args.get("profileid")
        return json_response(operations.update_profile(me, profileid, body, appid=me.appid))


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint() -> Response:
    """Create a profile for the caller's own account."""
    with connection():
        me, accountid = caller(), request.args.get("accountid")
        return json_response(operations.create_profile(me, accountid, body, appid=me.appid), 201)


@profiles.get("/api/administrator/profiles")
def profiles_endpoint() -> Response:
    """List the application's profiles, newest first."""
    return page_response(Profile)


@sessions.get("/api/administrator/sessions")
def sessions_endpoint() -> Response:
    """List the application's sessions, newest first."""
    return page_response(Session)


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
    views, rules = current_app.view_functions, current_app.url_map.iter_rules()
    return json_response(describe(settings(), {r.rule: views[r.endpoint].__doc__ for r in rules}))


@description.get("/")
@description.get("/docs")
def front_endpoint() -> Response:
    """Redirect to the documentation by a relative address, without the Host header."""
    return Response(status=302, headers={"Location": "docs/"})


def json_response(value: Any, status: int = 200) -> Response:
    """Return the value as JSON on a line of its own."""
    return Response(orjson.dumps(value) + b"\n", status, content_type=JSON)


def page_response(model: ListedModel) -> Response:
    """Return a page as JSON, sent as it is read when it is long, with a link to the next."""
    query = request.args.to_dict()
    with connection():
        me = caller()
        page = operations.read_listing(model, me, me.appid, query)
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
    try:
        for batch in batches:
            yield opening + orjson.dumps(batch)[1:-1]
            opening = b","
    except Exception as error:
        note("code", str(error) if isinstance(error, ServiceError) else "internal-error")
        raise
    yield b"]\n"
