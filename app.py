"""The application factory: settings, database, errors, blueprints, commands."""

import logging
import os
import re
import time
import traceback
from contextlib import closing
from secrets import token_hex
from typing import Any

import orjson
from flask import Flask, Response, current_app, has_request_context, request
from flask.json.provider import JSONProvider
from flask.logging import has_level_handler, wsgi_errors_stream
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, NotFound

import config
from blueprints import BLUEPRINTS
from commands import commands
from database import SQLite, db, init_database
from errors import HTTP_CODES, ServiceError, as_line
from models import create_tables
from openapi import description, docs, read_documents
from outages import DATABASE_ERRORS, is_outage, log_error, redact
from turns import TurnMiddleware, end_threads

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # since tokens are typed into the page
}
ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


def create_app(overrides: dict[str, Any] | None = None) -> Flask:
    """Return the service with the environment's settings. Raises SettingError."""
    overrides = overrides or {}
    checked = config.load(os.environ | overrides)
    app = Flask(__name__, static_folder=None)
    app.config.update(overrides, **checked)
    app.wsgi_app = TurnMiddleware(app.wsgi_app, checked["MAXIMUM_POST_DATA_LENGTH"])
    app.json = OrjsonProvider(app)
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    logger = logging.getLogger(app.name)
    if not has_level_handler(logger):  # a host program may have handlers of its own
        logger.addHandler(log_handler)
    app.before_request(check_request)
    app.after_request(add_headers)
    for blueprint in (*BLUEPRINTS, description, docs, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    for error_type in DATABASE_ERRORS:
        app.register_error_handler(error_type, database_error)
    with app.app_context():
        app.extensions["documents"] = read_documents()
    end_threads()  # those of an earlier app
    init_database(checked["DATABASE_URL"], create_tables)
    if "FLASK_RUN_FROM_CLI" not in os.environ:  # a command of flask may not need it
        try:
            with closing(db):  # no connection may survive into forked processes
                db.execute_sql("SELECT 1")  # the first connection creates the tables
        except DATABASE_ERRORS as error:
            log_error(logger, error)  # requests get a 503 until it can be reached
    return app


class OrjsonProvider(JSONProvider):
    """JSON by orjson, which keeps the order of properties, and writes UTF-8."""

    def response(self, *args: Any, **kwargs: Any) -> Response:
        """Return a JSON response, from bytes: Flask would decode and encode them."""
        body = args[0] if args else kwargs
        data = orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
        return Response(data, mimetype="application/json")

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        return orjson.dumps(obj).decode()

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        return orjson.loads(s)


def check_request() -> None:
    """Refuse a request for which no thread was free, or whose path is malformed."""
    waited = request.environ.get("profiles.waited")
    if waited:
        # Others take so long, mostly because the database hangs or is locked.
        message = "database unavailable: no thread within %s seconds"
        current_app.logger.error(message, waited)
        raise ServiceError("database-unavailable")
    # Flask would redirect an empty path to an address built from the Host header, and
    # would serve "a:/api/…", which a proxy's rule for "/api/" doesn't match.
    if not re.match("/(?!/)", request.environ["PATH_INFO"]):
        raise NotFound


def add_headers(response: Response) -> Response:
    """Add the headers that each response has."""
    headers = HEADERS | {"X-Request-Id": get_request_id()}
    if response.direct_passthrough:  # a file of the page: browsers may keep it
        del headers["Cache-Control"]
    response.headers.update(headers)
    return response


def service_error(error: ServiceError) -> tuple[dict[str, Any], int, dict[str, str]]:
    """Return the error as its JSON body, with the header that its status asks for."""
    request.environ["profiles.code"] = error.code
    body: dict[str, Any] = {"object": "error", "message": error.code}
    if error.errors:
        body["errors"] = error.errors
    if error.reason:
        body["reason"] = error.reason
    return body, error.status, ERROR_HEADERS.get(error.status, {})


def http_error(error: HTTPException) -> ResponseReturnValue:
    """Return an error that Flask itself raised, with its headers, such as Allow."""
    code = HTTP_CODES.get(error.code or 400, "bad-request")
    body, status, _ = service_error(ServiceError(code, error.code))
    headers = dict(error.get_headers())
    del headers["Content-Type"]
    return body, status, headers


def database_error(error: Exception) -> ResponseReturnValue:
    """Return 503 for an outage. Flask logs any other error and returns 500."""
    if not is_outage(error):
        raise redact(error) from None
    log_error(current_app.logger, error)
    db.expire()  # an old connection may stay read-only
    if isinstance(db.obj, SQLite):  # so may a new one beside it: end all threads
        end_threads()
    return service_error(ServiceError("database-unavailable"))


class LogFormatter(logging.Formatter):
    """Formats a line about an error, with its time in UTC and the request's id."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, whose message is printable, without its traceback."""
        request_id = get_request_id() if has_request_context() else "-"
        prefix = f"time={self.formatTime(record)} level={record.levelname}"
        return f"{prefix} request_id={request_id} {as_line(record.message)}"

    def formatException(self, ei: Any) -> str:
        """Return the traceback, with the message of each error as a printable line."""
        return "\n".join(
            chunk.rstrip() if chunk.startswith("  ") else as_line(chunk.strip())
            for chunk in traceback.format_exception(*ei)
        )


# Writes to the wsgi.errors of the request, or to standard error outside a request
log_handler: logging.StreamHandler[Any] = logging.StreamHandler(wsgi_errors_stream)
log_handler.setFormatter(LogFormatter())


def get_request_id() -> str:
    """Return the X-Request-Id of the request if it is valid, or else a new one."""
    request_id = request.environ.get("HTTP_X_REQUEST_ID", "")
    if not re.fullmatch("[A-Za-z0-9._-]{1,128}", request_id):
        request_id = token_hex(16)
    return str(request.environ.setdefault("profiles.request_id", request_id))
