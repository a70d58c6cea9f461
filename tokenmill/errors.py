"""Errors that a user can act on.

Every message is one sentence or two: what is wrong, and what to do about it.
The command line prints them as one line; the server turns them into a 4xx answer.
"""


class TokenmillError(Exception):
    """Base of all errors that tokenmill raises on purpose."""


class ConfigError(TokenmillError):
    """A setting is invalid, or two settings contradict each other."""


class CheckpointError(TokenmillError):
    """A model file is missing, truncated, hostile, or of an unsupported kind."""


class SourceError(TokenmillError):
    """A model could not be found or downloaded."""


class RequestError(TokenmillError):
    """One request is invalid (parameters, length, template); other requests are unaffected."""


class EngineDeadError(TokenmillError):
    """The engine thread stopped because of an internal error; the process should be restarted."""
