r"""Docstrings for the site: what they say in reStructuredText and in comments, as Markdown.

>>> markdown("Size :math:`d`.")  # doctest: +ELLIPSIS
'Size <span><math ... display="inline"><mrow><mi>d</mi></mrow></math></span>.'
>>> markdown(".. math:: d +\n          1\n\nNext.")  # doctest: +ELLIPSIS
'<math ... display="block"><mrow><mi>d</mi>...<mn>1</mn></mrow></math>\n\nNext.'
>>> markdown("Like so:\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nNext.")
'Like so:\n\n```pycon\n>>> 1 + 1\n2\n```\n\nNext.'
"""

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object
from latex2mathml.converter import convert


class Docstrings(Extension):
    """Rewrites every docstring; an attribute without one gets the ``#:`` comment above it."""

    def on_object(self, *, obj: Object, **others: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if isinstance(obj, Attribute) and obj.docstring is None and (comment := above(obj)):
            obj.docstring = Docstring(comment, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def above(attribute: Attribute) -> str:
    """The ``#:`` lines right above an attribute, as one."""
    lines = attribute.lines_collection[attribute.filepath][: (attribute.lineno or 1) - 1]
    comment: list[str] = []
    while lines and lines[-1].strip().startswith("#:"):
        comment.insert(0, lines.pop().strip().removeprefix("#:").strip())
    return " ".join(comment)


def markdown(text: str) -> str:
    """Formulas as MathML, which browsers typeset without a script; examples in fences."""
    # A line that begins with a formula would be a paragraph of its own.
    text = re.sub(r":math:`([^`]+)`", lambda found: f"<span>{convert(found[1])}</span>", text)
    # A formula goes on to the next line that is neither indented nor empty, an example to the next
    # empty one.
    formula = re.compile(r"^\.\. math::(.*(?:\n(?: +.*)?)*)", re.MULTILINE)
    text = formula.sub(
        lambda found: convert(" ".join(found[1].split()), display="block") + "\n\n", text
    )
    text = re.sub(r" *# doctest:.*", "", text)
    example = re.compile(r"^>>> .*(?:\n.*\S.*)*", re.MULTILINE)
    return example.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
