"""What a request says: its caller, its body; and what the log says of the request."""

import json
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

import orjson
from flask import request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest
from werkzeug.formparser import MultiPartParser

from accounts import Caller, authenticate
from config import settings
from errors import ServiceError
from operations import checked_appid


def note(name: str, value: str) -> None:
    """Say something of the request in its line of the log, which ``gunicorn.conf.py`` writes."""
    request.environ[f"profiles.{name}"] = value


def caller() -> Caller:
    """Return the caller of the request. Raises invalid-appid or sign-in-required."""
    appid = checked_appid(request.environ.get("HTTP_X_APPID"))
    note("appid", appid)
    found = authenticate(request.environ.get("HTTP_AUTHORIZATION"), appid)
    note("account", found.accountid)
    return found


def body() -> Any:
    """Return the body: a form, or any JSON value; none is an empty form. Raises ServiceError."""
    try:
        text = whole_text(settings().maximum_post_data_length)
        if not text:
            return {}
        if request.mimetype == "application/x-www-form-urlencoded":
            pairs = parse_qsl(text.decode(), keep_blank_values=True, errors="strict")
            return dict(reversed(pairs))  # the first of a name counts
        if request.mimetype == "multipart/form-data":
            boundary = request.mimetype_params["boundary"].encode("ascii")
            parts = PlainParts(lambda *args, **kwargs: BytesIO())  # files are ignored
            form, _ = parts.parse(BytesIO(text), boundary, len(text))
            return {name: value.encode("latin-1").decode() for name, value in form.items()}
        if not request.is_json:
            raise ServiceError("unsupported-media-type")
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            if "infinity" not in str(error):  # a number beyond a double
                raise
            return json.loads(text, parse_int=float, parse_constant=int)  # int refuses NaN
    except (ValueError, KeyError, RecursionError, OSError, ParseException, BadRequest) as error:
        raise ServiceError("invalid-body") from error


def whole_text(most: int) -> bytes:
    """Return the bytes of the body, at most so many. Raises ServiceError, or a server's error."""
    length = request.content_length or 0  # none of a chunked body
    text = b"" if length > most else request.stream.read(most + 1)
    if max(length, len(text)) > most:
        raise ServiceError("body-too-large")
    if len(text) < length:  # the client sent less
        raise ServiceError("invalid-body")
    return text


class PlainParts(MultiPartParser):
    """Keeps each byte of a text as one character, where Werkzeug replaces what is not UTF-8."""

    def get_part_charset(self, headers: Any) -> str:
        return "latin-1"
