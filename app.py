"""The application factory: settings, database, errors, blueprints, commands."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from click import ClickException
from flask import Flask, Response
from werkzeug.exceptions import HTTPException

import config
import models
from blueprints import BLUEPRINTS, FormRequest, answer
from commands import commands
from errors import STATUSES, ServiceError

RETRY_SECONDS = "2"
CODES = {status: code for code, status in STATUSES.items()}


class StartError(ClickException, RuntimeError):
    """A start refused: ``flask`` tells the first in one line, ``gunicorn --preload`` the second."""


def create_app(overrides: Mapping[str, Any] | None = None) -> Flask:
    """The service, its settings read from the environment and then from the overrides.

    Raises StartError for a bad setting. Missing tables are made; a database that is away is
    logged and asked again at each request, so that a worker can start before it is back.
    """
    try:
        settings = config.load({**os.environ, **(overrides or {})})
    except config.SettingError as error:
        raise StartError(str(error)) from error
    app = Flask(__name__, static_folder=None)
    app.request_class = FormRequest
    app.config["SETTINGS"] = settings
    app.config["MAX_CONTENT_LENGTH"] = settings.maximum_post_data_length
    app.config["MAX_FORM_MEMORY_SIZE"] = settings.maximum_post_data_length
    for blueprint in (*BLUEPRINTS, commands):
        app.register_blueprint(blueprint)
    app.register_error_handler(ServiceError, service_error)
    app.register_error_handler(HTTPException, http_error)
    app.after_request(forbid_storing)
    models.use(settings.database)
    with suppress(ServiceError), models.connection():
        pass
    models.database.close_idle()  # nothing for a fork to share
    return app


def service_error(error: ServiceError) -> Response:
    """The error as its JSON body, with the header that its status asks for."""
    response = answer({"object": "error", "message": error.code}, error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        response.headers["Retry-After"] = RETRY_SECONDS
    return response


def http_error(error: HTTPException) -> Response:
    """An error that Flask raised by itself, with the headers it gave it, such as Allow."""
    response = error.get_response()
    if response.status_code >= 400:
        code = CODES.get(response.status_code, "invalid-body")
        response.data = service_error(ServiceError(code)).data
        response.content_type = "application/json"
    return response


def forbid_storing(response: Response) -> Response:
    """An answer is one caller's, at one moment."""
    response.headers["Cache-Control"] = "no-store"
    return response
