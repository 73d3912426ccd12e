"""Errors of requests, which each dialect writes in its own form."""

from dataclasses import dataclass

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
}
"""status -> its name; others are api_error"""


@dataclass
class ApiError(Exception):
    """An answer other than 200.

    Attributes:
        status: of HTTP.
        message: one sentence.
        parameter: path of the wrong field, such as ``messages[2].role``; '' if none is.
        code: a word for programs; '' if there is none.
    """

    status: int
    message: str
    parameter: str = ""
    code: str = ""

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        """The name of the status."""
        return TYPES.get(self.status, "api_error")


def unsupported(parameter: str, remedy: str) -> ApiError:
    """The error of a request for something that this endpoint cannot do."""
    return ApiError(400, f"'{parameter}' is not supported: {remedy}", parameter, "unsupported_parameter")


def invalid(parameter: str, expected: str) -> ApiError:
    """The error of a field of another type or value."""
    return ApiError(400, f"'{parameter}' must be {expected}", parameter, "invalid_value")
