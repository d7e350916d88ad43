"""Shows doctests that stand in the text of a docstring as code; without this Markdown takes ``>>>`` for quotations."""

import re
from typing import Any

from griffe import Extension, Object

# From a prompt to the next empty line.
_SESSION = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(Extension):
    """Puts fences around doctests, but for those of a section of examples, which are code already."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            text, title, examples = obj.docstring.value.partition("\nExamples\n---")
            obj.docstring.value = _SESSION.sub(r"```pycon\n\g<0>\n```", text) + title + examples
