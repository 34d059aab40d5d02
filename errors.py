"""The one error of the service: its message is the code, and it knows its HTTP status."""

STATUSES = {
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
"""HTTP status of each code. Others are mistakes in the request: 400, or 404 for an unknown id."""


class ServiceError(Exception):
    """A request that fails: ``str(error)`` is the code, ``error.status`` the HTTP status."""

    def __init__(self, code: str, status: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.status = status or STATUSES.get(code, 400)
