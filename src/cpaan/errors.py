"""The error for input that cannot be used, as opposed to a bug in this library."""


class InputError(ValueError):
    """An input cannot be used; the message names the cause and the cure.

    The command line prints it without a traceback and exits with code 2.
    """
