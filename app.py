"""The application factory: settings, database, errors, blueprints, commands."""

import os
import re
from secrets import token_hex

from flask import Flask, request
from werkzeug.exceptions import HTTPException

import config
from blueprints import BLUEPRINTS
from commands import commands
from database import (
    DEFECTS,
    OUTAGES,
    db,
    init_database,
    log_outage,
    retry_on_conflict,
)
from errors import HTTP_CODES, ServiceError
from models import create_tables
from openapi import description, docs

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # since tokens are typed into the page
}
HEADERS_OF_ERRORS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


def create_app(overrides=None):
    """Return the service, set up by the environment and then the overrides.

    Raises SettingError.
    """
    settings = config.load(os.environ | (overrides or {}))
    app = Flask(__name__, static_folder=None)
    app.config.update(overrides or {}, **settings)
    # One byte more than a body may have: see read_bytes() in blueprints.py.
    app.config["MAX_CONTENT_LENGTH"] = settings["MAXIMUM_POST_DATA_LENGTH"] + 1
    app.json.sort_keys = False
    app.json.ensure_ascii = False
    app.url_map.merge_slashes = False  # a redirect would repeat the Host header
    app.after_request(add_headers)
    for blueprint in (*BLUEPRINTS, description, docs, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    for outage in OUTAGES:
        app.register_error_handler(outage, database_error)
    init_database(settings["DATABASE_URL"])
    try:
        retry_on_conflict(create_tables)(db)
    except OUTAGES as error:
        log_outage(error)  # requests are answered with 503
    db.close()  # before gunicorn forks
    return app


def add_headers(response):
    """Add the headers that each response has.

    The request's X-Request-Id is sent back if it is valid, or else a new one.
    """
    request_id = request.environ.get("HTTP_X_REQUEST_ID", "")
    if not re.fullmatch("[A-Za-z0-9._-]{1,128}", request_id):
        request_id = token_hex(16)
    request.environ["profiles.request_id"] = request_id
    response.headers.update(HEADERS | {"X-Request-Id": request_id})
    return response


def service_error(error):
    """Return the error as its JSON body, with the header that its status asks for."""
    request.environ["profiles.code"] = error.code
    body = {"object": "error", "message": error.code}
    return body, error.status, HEADERS_OF_ERRORS.get(error.status, {})


def http_error(error):
    """Return an error that Flask itself raised, with its headers, such as Allow."""
    code = HTTP_CODES.get(error.code, "bad-request")
    body, status, _ = service_error(ServiceError(code, error.code))
    _, *headers = error.get_headers()  # the first is the type of the body
    return body, status, headers


def database_error(error):
    """Return 503: the database is away, full, read-only, locked or incomplete."""
    if isinstance(error, DEFECTS):
        raise error  # Flask logs it, and answers 500
    log_outage(error)
    db.close()  # the next request gets a new connection: an old one may stay read-only
    return service_error(ServiceError("database-unavailable"))
