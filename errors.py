"""The errors of a request, whose message is a code, and of a setting."""

from click import ClickException

STATUSES = {  # of the codes; other errors are 400, or 404 for an identifier that is unknown
    "sign-in-required": 401,
    "invalid-account": 403,
    "administrator-required": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "body-too-large": 413,
    "unsupported-media-type": 415,
    "internal-error": 500,
    "database-unavailable": 503,
}


class ServiceError(Exception):
    """A request that fails: ``str(error)`` is the code, ``error.status`` the HTTP status."""

    def __init__(self, code: str, status: int | None = None) -> None:
        super().__init__(code)
        self.code, self.status = code, status or STATUSES.get(code, 400)


class SettingError(ClickException, RuntimeError):  # flask prints it as one line
    """A setting that is refused. The message is one line: variable, value, reason."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        shown = str(value) if str(value).isprintable() else repr(value)
        super().__init__(f"{name}={shown}: {reason}")
