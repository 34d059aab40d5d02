"""The application factory: settings, database, errors, blueprints, commands."""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

from click import get_current_context
from flask import Flask, Response, current_app, has_request_context, request
from flask.logging import default_handler
from werkzeug.exceptions import HTTPException

import config
import operations
from blueprints import BLUEPRINTS, JSON, json_response
from commands import commands
from database import bind, connection
from errors import ServiceError

HTTP_CODES = {404: "not-found", 405: "method-not-allowed", 500: "internal-error"}
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,128}")


class RequestLines(logging.Formatter):
    """Begins each line of a record with the id of the request, so that none can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        id = request.environ.get("profiles.request_id") if has_request_context() else None
        prefix = f"request_id={id} " if id else ""  # none in a request of another Flask app
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class Service(Flask):
    """Gives each request an id, and adds the common headers to each response."""

    def wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Any:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        environ["profiles.request_id"] = given if REQUEST_ID.fullmatch(given) else token_hex(16)
        if environ["PATH_INFO"][:2] in ("", "//"):  # Flask would redirect it, or drop a slash
            environ["PATH_INFO"] = "/not-found"
        return super().wsgi_app(environ, start_response)

    def process_response(self, response: Response) -> Response:
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Request-Id"] = request.environ["profiles.request_id"]
        return super().process_response(response)


def create_app(overrides: Mapping[str, Any] | None = None) -> Flask:
    """Return the service, its settings read from the environment and then from the overrides.

    Overrides that are not settings are Flask's own, such as TESTING. Raises SettingError. Makes
    missing tables, but under ``flask`` only when the database is first used. A database that is
    away is logged and asked again at each request, so that a worker can start before it is back.
    """
    settings = config.load({**os.environ, **(overrides or {})})
    bind(settings.database_url)
    app = Service(__name__, static_folder=None)
    app.config.update(overrides or {}, SETTINGS=settings)
    app.config["MAX_CONTENT_LENGTH"] = settings.maximum_post_data_length + 1  # see whole_text()
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    for blueprint in (*BLUEPRINTS, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    if default_handler in app.logger.handlers:  # Flask adds it unless there is another
        default_handler.setFormatter(RequestLines("[%(asctime)s] %(levelname)s: %(message)s"))

    def settings_of_call() -> config.Settings:
        """Return the settings of the active app, or of this one when none of ours is active."""
        return (current_app if isinstance(current_app, Service) else app).config["SETTINGS"]

    operations.settings_source = settings_of_call
    if not get_current_context(silent=True):
        with suppress(ServiceError), connection():  # which makes the tables, or logs why not
            pass
    return app


def service_error(error: ServiceError) -> Response:
    """Return the error as its JSON body, with the header that its status asks for."""
    request.environ["profiles.code"] = error.code
    response = json_response({"object": "error", "message": error.code}, error.status)
    response.headers.update(HEADERS.get(error.status, {}))
    return response


def http_error(error: HTTPException) -> Response:
    """Return an error that Flask raised by itself, with the headers it gave it, such as Allow."""
    code = HTTP_CODES.get(error.code or 0, "invalid-body")
    response = service_error(ServiceError(code, error.code))
    response.headers.update(dict(error.get_headers()) | {"Content-Type": JSON})
    return response
