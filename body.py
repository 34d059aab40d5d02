"""The body of a request: a form or a JSON object, read as a dictionary."""

from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

import orjson
from flask import request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import ClientDisconnected
from werkzeug.formparser import FormDataParser

from errors import ServiceError

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


def read_body() -> dict[str, Any]:
    """Return the body, a form or a JSON object, as a dictionary.

    Without a body the dictionary is empty. Raises invalid-body, unsupported-media-type
    or Werkzeug's RequestEntityTooLarge.
    """
    try:
        data = request.get_data()
        if not data:
            return {}
        if request.is_json:
            body = orjson.loads(data)
        elif request.mimetype in (URLENCODED, MULTIPART):
            body = parse_form(data)
        else:
            raise ServiceError("unsupported-media-type")
        if not isinstance(body, dict):
            raise ValueError
    except (ValueError, ClientDisconnected) as error:  # malformed, or it broke off
        raise ServiceError("invalid-body") from error
    return body


def parse_form(data: bytes) -> dict[str, str]:
    """Return the fields of a form, without its files.

    Raises ValueError for a form that is broken or not UTF-8. Flask's request.form would
    be empty, or would keep the bytes of another encoding as percent escapes.
    """
    if request.mimetype == URLENCODED:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, errors="strict")
        fields = MultiDict(pairs)
    else:
        # In memory, because nobody would close the temporary file of an upload.
        parser = FormDataParser(lambda *args, **kwargs: BytesIO(), silent=False)
        _, fields, _ = parser.parse(
            BytesIO(data), request.mimetype, len(data), request.mimetype_params
        )
    form = fields.to_dict()  # the first value of a name counts
    # Werkzeug replaces multipart bytes that are not UTF-8 with U+FFFD, so it is refused
    # in every form.
    if "\ufffd" in "".join(form.values()):
        raise ValueError
    return form
