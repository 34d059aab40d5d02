"""One blueprint for each endpoint: HTTP in, one operation, JSON out."""

from collections.abc import Iterator
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from flask import Blueprint, Request, Response, current_app, redirect, request
from flask_swagger_ui import get_swaggerui_blueprint
from gunicorn.http.errors import ParseException
from werkzeug.wrappers import Response as WerkzeugResponse

import operations
from auth import signed_in
from database import connection, database
from errors import ServiceError
from models import Listed, Profile, Session

JSON = "application/json"

update_profile = Blueprint("update-profile", __name__)
create_profile = Blueprint("create-profile", __name__)
profiles = Blueprint("profiles", __name__)
sessions = Blueprint("sessions", __name__)
health = Blueprint("health", __name__)
description = Blueprint("description", __name__)
docs = get_swaggerui_blueprint(
    # Without these two the page would ask a validator on the network, and repeat the Host header.
    *("/docs", "/openapi.json"),
    config={"app_name": "Profiles", "validatorUrl": None, "oauth2RedirectUrl": None},
)
BLUEPRINTS = (update_profile, create_profile, profiles, sessions, health, description, docs)


@update_profile.patch("/api/user/update-profile")
def update_profile_endpoint() -> Response:
    """Update the configured fields of one of the caller's own profiles."""
    with connection():
        caller, appid = sign_in()
        profileid = request.args.get("profileid")
        return answer(operations.update_profile(caller, profileid, body(), appid=appid))


@create_profile.post("/api/user/create-profile")
def create_profile_endpoint() -> Response:
    """Create a profile for the caller's own account."""
    with connection():
        caller, appid = sign_in()
        accountid = request.args.get("accountid")
        return answer(operations.create_profile(caller, accountid, body(), appid=appid), 201)


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
    """Tell whether the service can reach its database."""
    with connection():
        database.execute_sql("SELECT 1").fetchone()
    return answer({"object": "health", "status": "ok"})


@description.get("/openapi.json")
def description_endpoint() -> Response:
    """Describe this deployment."""
    from openapi import describe  # not needed to serve, so not loaded to serve

    views = current_app.view_functions
    rules = current_app.url_map.iter_rules()
    summaries = {rule.rule: views[rule.endpoint].__doc__ for rule in rules}
    return answer(describe(operations.settings(), summaries))


@description.get("/")
@description.get("/docs")
def front_endpoint() -> WerkzeugResponse:
    """Lead to the documentation, without a host that a Host header could have made up."""
    return redirect("docs/")


class FormRequest(Request):
    """A request whose broken form is an error, where Flask's is an empty form."""

    def make_form_data_parser(self) -> Any:
        parser = super().make_form_data_parser()
        parser.silent = False
        return parser


def sign_in() -> tuple[operations.Caller, str]:
    """The caller and the application of the request."""
    appid = operations.application(request.headers.get("X-Appid"))
    return signed_in(request.headers.get("Authorization"), appid), appid


def body() -> dict[str, Any]:
    """The body of the request, of whichever of the three kinds; none is an empty one."""
    try:
        text = whole_text()
        if not text:
            return {}
        if request.mimetype == "application/x-www-form-urlencoded":
            pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict")
            return dict(reversed(pairs))  # the first of a name counts
        if request.mimetype == "multipart/form-data":
            form = request.form.to_dict()
            # Werkzeug puts U+FFFD for what is not UTF-8; nobody sent that.
            if any("\ufffd" in value and value.encode() not in text for value in form.values()):
                raise ServiceError("invalid-body")
            return form
        if not request.is_json:
            raise ServiceError("unsupported-media-type")
        values = orjson.loads(text)
    except (ValueError, ParseException) as error:  # the second is gunicorn's, of broken chunks
        raise ServiceError("invalid-body") from error
    if not isinstance(values, dict):
        raise ServiceError("invalid-body")
    return values


def whole_text() -> bytes:
    """The bytes of the body, which gunicorn also hands on cut short, and Werkzeug cut off."""
    text = request.get_data()
    if len(text) < (request.content_length or 0):
        raise ServiceError("invalid-body")
    ends_by_itself = request.environ.get("wsgi.input_terminated")
    most = current_app.config["MAX_CONTENT_LENGTH"]
    if ends_by_itself and len(text) == most and request.environ["wsgi.input"].read(1):
        raise ServiceError("body-too-large")
    return text


class PrivateResponse(Response):
    """An answer is one caller's, at one moment: nobody may keep it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.headers["Cache-Control"] = "no-store"


def answer(value: Any, status: int = 200) -> Response:
    """The value as JSON."""
    return PrivateResponse(orjson.dumps(value), status, content_type=JSON)


def listing(model: Listed) -> Response:
    """A page as JSON, sent as it is read when it is long, with a link to the next."""
    query = request.args.to_dict()
    with connection():
        caller, appid = sign_in()
        page = operations.list_page(model, caller, appid, query)
    if page.rest is None:
        response = answer(page.first or None)
    else:
        response = PrivateResponse(array_text(chain([page.first], page.rest)), content_type=JSON)
    if page.next:
        kept = {name: query[name] for name in ("accountid", "limit") if query.get(name)}
        link = urlencode({**kept, "after": page.next})
        response.headers["Link"] = f'<{request.root_path}{request.path}?{link}>; rel="next"'
    return response


def array_text(batches: Iterator[list[dict[str, Any]]]) -> Iterator[bytes]:
    """The text of one JSON array, a batch at a time."""
    opening = b"["
    for batch in batches:
        yield opening + orjson.dumps(batch)[1:-1]
        opening = b","
    yield b"]"
