"""The application factory: settings, database, errors, blueprints, commands."""

import os
import re
from contextlib import suppress
from secrets import token_hex

from flask import Flask, request
from werkzeug.exceptions import HTTPException

import config
from blueprints import BLUEPRINTS, JSON, json_response
from commands import commands
from database import db
from engines import ENGINES
from errors import ServiceError
from models import make_tables

HTTP_CODES = {404: "not-found", 405: "method-not-allowed", 500: "internal-error"}
# No frames, since tokens are typed into the page.
SAFE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
HEADERS_OF_ERRORS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,128}")


class Service(Flask):
    """Gives each request an id, and each response the headers that all have."""

    def wsgi_app(self, environ, start_response):
        id = environ.get("HTTP_X_REQUEST_ID", "")
        id = environ["profiles.request_id"] = (
            id if REQUEST_ID.fullmatch(id) else token_hex(16)
        )

        def start(status, headers, *error):
            own = [
                header for header in headers if header[0] != "Cache-Control"
            ]  # of a file
            return start_response(
                status, [*own, *SAFE.items(), ("X-Request-Id", id)], *error
            )

        return super().wsgi_app(environ, start)


def create_app(overrides=None):
    """Return the service, set up by the environment and then the overrides. Raises SettingError."""
    settings = config.load({**os.environ, **(overrides or {})})
    app = Service(__name__, static_folder=None)
    app.config.update(overrides or {}, **settings)
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    for blueprint in (*BLUEPRINTS, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    if db.obj:
        db.close()
    url = settings["DATABASE_URL"]
    db.initialize(ENGINES[url.engine](url))
    with suppress(ServiceError):  # the log says why; requests are 503 meanwhile
        make_tables()
    return app


def service_error(error):
    """Return the error as its JSON body, with the header that its status asks for."""
    request.environ["profiles.code"] = error.code
    response = json_response({"object": "error", "message": error.code}, error.status)
    response.headers.update(HEADERS_OF_ERRORS.get(error.status, {}))
    return response


def http_error(error):
    """Return an error that Flask raised by itself, with the headers it gave it, such as Allow."""
    code = HTTP_CODES.get(error.code or 0, "bad-request")
    response = service_error(ServiceError(code, error.code))
    response.headers.update(dict(error.get_headers()) | {"Content-Type": JSON})
    return response
