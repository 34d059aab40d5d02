"""The application factory: settings, database, errors, blueprints, commands."""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from click import ClickException
from flask import Flask, Response
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as WerkzeugResponse

import config
from blueprints import BLUEPRINTS, JSON, FormRequest, PrivateResponse, answer
from commands import commands
from database import connection, database, use
from errors import STATUSES, ServiceError

RETRY_SECONDS = "2"
CODES = {status: code for code, status in STATUSES.items()}


class StartError(ClickException, RuntimeError):
    """A start refused: ``flask`` tells the first in one line, ``gunicorn --preload`` the second."""


def create_app(overrides: Mapping[str, Any] | None = None) -> Flask:
    """The service, its settings read from the environment and then from the overrides.

    Overrides that are no settings of the service are Flask's own, such as TESTING. Raises
    StartError for a bad setting. Missing tables are made; a database that is away is logged and
    asked again at each request, so that a worker can start before it is back.
    """
    try:
        settings = config.load({**os.environ, **(overrides or {})})
        use(settings.database)
    except config.SettingError as error:
        raise StartError(str(error)) from error
    app = Flask(__name__, static_folder=None)
    app.request_class, app.response_class = FormRequest, PrivateResponse
    app.config.update(overrides or {})
    app.config["SETTINGS"] = settings
    app.config["MAX_CONTENT_LENGTH"] = settings.maximum_post_data_length
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.maximum_post_data_length
    app.config["MAX_FORM_PARTS"] = None  # as many as fit
    for blueprint in (*BLUEPRINTS, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    with suppress(ServiceError), connection():
        pass
    database.close_idle()  # nothing for a fork to share
    for log in ("gunicorn.error", "gunicorn.access"):
        logging.getLogger(log).addFilter(without_contents)
    return app


def without_contents(record: logging.LogRecord) -> bool:
    """gunicorn quotes what it cannot read, which may be a token or a profile: tell the kind.

    It also decodes the paths of its access log, line breaks included: one record, one line.
    """
    text = record.getMessage()
    if text.startswith(("Invalid request from ", "Ignored premature client disconnection")):
        text = re.split("['\"]", text)[0]
    record.msg, record.args = text if text.isprintable() else repr(text), ()
    return True


def service_error(error: ServiceError) -> Response:
    """The error as its JSON body, with the header that its status asks for."""
    response = answer({"object": "error", "message": error.code}, error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        response.headers["Retry-After"] = RETRY_SECONDS
    return response


def http_error(error: HTTPException) -> WerkzeugResponse:
    """An error that Flask raised by itself, with the headers it gave it, such as Allow."""
    response = error.get_response()
    code = CODES.get(response.status_code, "invalid-body")
    response.data = service_error(ServiceError(code)).data
    response.headers |= {"Content-Type": JSON, "Cache-Control": "no-store"}
    return response
