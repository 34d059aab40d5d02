"""The application factory: settings, database, errors, blueprints, commands."""

import os
import re
from contextlib import suppress
from secrets import token_hex

import orjson
from flask import Flask, request
from flask.json.provider import DefaultJSONProvider
from werkzeug.exceptions import HTTPException

import config
from blueprints import BLUEPRINTS
from commands import commands
from database import db, repeated, use
from errors import HTTP_CODES, ServiceError
from models import make_tables
from openapi import description, docs

HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),  # since tokens are typed into the page
)
HEADERS_OF_ERRORS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,128}")


class JSONProvider(DefaultJSONProvider):
    def dumps(self, value, **options):
        return orjson.dumps(value).decode()


def create_app(overrides=None):
    """Return the service, set up by the environment and then the overrides.

    Raises SettingError.
    """
    overrides = overrides or {}
    settings = config.load({**os.environ, **overrides})
    app = Flask(__name__, static_folder=None)
    app.config.update(overrides, **settings)
    app.json = JSONProvider(app)
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    app.after_request(add_headers)
    for blueprint in (*BLUEPRINTS, description, docs, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    use(settings["DATABASE_URL"])
    with suppress(ServiceError):  # the log says why; requests are 503 meanwhile
        repeated(make_tables)(db)
    db.close()  # before gunicorn forks
    return app


def add_headers(response):
    """Add the headers that each response has. Without a valid id, make a new one."""
    environ = request.environ
    id = environ.get("HTTP_X_REQUEST_ID", "")
    if not REQUEST_ID.fullmatch(id):
        id = token_hex(16)
    environ["profiles.request_id"] = id
    headers = response.headers
    headers.pop("Cache-Control", None)  # which the files of the page have
    headers.add("X-Request-Id", id)
    for name, value in HEADERS:
        headers.add(name, value)
    return response


def service_error(error):
    """Return the error as its JSON body, with the header that its status asks for."""
    request.environ["profiles.code"] = error.code
    body = {"object": "error", "message": error.code}
    return body, error.status, HEADERS_OF_ERRORS.get(error.status, {})


def http_error(error):
    """Return an error that Flask raised by itself, with its headers, such as Allow."""
    code = HTTP_CODES.get(error.code, "bad-request")
    body, status, _ = service_error(ServiceError(code, error.code))
    _, *headers = error.get_headers()  # the first is the type
    return body, status, headers
