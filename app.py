"""The application factory: settings, database, errors, blueprints, commands."""

import logging
import os
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from flask import Flask, Response, current_app, has_request_context, request
from flask.logging import wsgi_errors_stream
from werkzeug.exceptions import HTTPException

import config
from blueprints import BLUEPRINTS, JSON, json_response
from commands import commands
from database import bind, logger
from errors import ServiceError
from incoming import note

HTTP_CODES = {404: "not-found", 405: "method-not-allowed", 500: "internal-error"}
HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),  # tokens are typed into the page
]
HEADERS_OF_ERRORS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}
REQUEST_ID = re.compile("[A-Za-z0-9._-]{1,128}")


class RequestLines(logging.Formatter):
    """Begins each line of a record with the id of its request, also a line that a client wrote."""

    def format(self, record: logging.LogRecord) -> str:
        id = request.environ.get("profiles.request_id") if has_request_context() else None
        prefix = f"request_id={id} " if id else ""  # none in a request of another Flask app
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class Service(Flask):
    """Gives each request an id, and each response the headers that all have."""

    logger = logger  # with a handler that no other app shares

    def wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Any:
        id = environ.get("HTTP_X_REQUEST_ID", "")
        id = environ["profiles.request_id"] = id if REQUEST_ID.fullmatch(id) else token_hex(16)
        if environ["PATH_INFO"][:2] in ("", "//"):  # Flask would redirect it, or drop a slash
            environ["PATH_INFO"] = "/not-found"

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            own = [header for header in headers if header[0] != "Cache-Control"]  # of a file
            return start_response(status, [*own, *HEADERS, ("X-Request-Id", id)], *error)

        return super().wsgi_app(environ, start)


def create_app(overrides: Mapping[str, Any] | None = None) -> Flask:
    """Return the service, its settings read from the environment and then from the overrides.

    Overrides that are not settings are Flask's own, such as TESTING. Raises SettingError. The
    database is asked only when it is first used, and then missing tables are made.
    """
    settings = config.load({**os.environ, **(overrides or {})})
    bind(settings.database_url)
    app = Service(__name__, static_folder=None)
    app.config.update(overrides or {}, SETTINGS=settings)
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    for blueprint in (*BLUEPRINTS, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    if not logger.hasHandlers():  # the host has set up none
        handler = logging.StreamHandler[Any](wsgi_errors_stream)
        handler.setFormatter(RequestLines("[%(asctime)s] %(levelname)s: %(message)s"))
        logger.addHandler(handler)

    def source() -> config.Settings:
        """Return the settings of the active app, or of this one when none of ours is active."""
        return (current_app if isinstance(current_app, Service) else app).config["SETTINGS"]

    config.source = source
    return app


def service_error(error: ServiceError) -> Response:
    """Return the error as its JSON body, with the header that its status asks for."""
    note("code", error.code)
    response = json_response({"object": "error", "message": error.code}, error.status)
    response.headers.update(HEADERS_OF_ERRORS.get(error.status, {}))
    return response


def http_error(error: HTTPException) -> Response:
    """Return an error that Flask raised by itself, with the headers it gave it, such as Allow."""
    code = HTTP_CODES.get(error.code or 0, "bad-request")
    response = service_error(ServiceError(code, error.code))
    response.headers.update(dict(error.get_headers()) | {"Content-Type": JSON})
    return response
