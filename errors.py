"""ServiceError, whose message is a code, and SettingError, for a refused setting."""

from collections.abc import Mapping

from click import ClickException

# The HTTP status of each code. A code that is not here is 400; get_object() in rows.py
# passes 404 itself.
STATUSES = {
    "sign-in-required": 401,
    "invalid-account": 403,
    "administrator-required": 403,
    "profile-changed": 412,
    "unsupported-media-type": 415,
    "database-unavailable": 503,
}
# The code of an error that Flask itself raises, by its status. Any other status maps to
# bad-request.
HTTP_CODES = {
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    500: "internal-error",
}


class ServiceError(Exception):
    """A request that fails: ``str(error)`` is the code, ``error.status`` the status.

    ``error.errors``: if fields of a profile are wrong, the code of each.
    ``error.reason`` of sign-in-required: ``ended`` or ``expired`` if the application
    knows the token, otherwise None.
    """

    def __init__(
        self,
        code: str,
        status: int | None = None,
        errors: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.errors = errors or {}
        self.reason = reason
        self.status = status or STATUSES.get(code, 400)


class SettingError(ClickException):
    """A setting that is refused. The message is one line: variable, value, reason.

    It is a ClickException because ``flask`` loads the app, and so the settings, before
    it runs a command: Click prints the line instead of a traceback.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name}={as_line(str(value))}: {reason}")


def as_line(text: str) -> str:
    """Return the string itself if it is one printable line, or else its repr."""
    return text if text.isprintable() else repr(text)
