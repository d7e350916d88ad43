"""What goes wrong because of what was given, as opposed to a fault of this library."""


class InputError(ValueError):
    """Something given cannot be used; the message names the cause and, where there is one, the cure.

    The command line prints it without a traceback and exits with code 2.
    """
