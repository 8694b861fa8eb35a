"""Elements of HTML and SVG. Text and attributes are escaped when the tree is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.etree.ElementTree import Element, tostring

Child = str | Element | None | Iterable["Child"]

#: What no document may have: control characters, and halves of surrogate pairs.
_FORBIDDEN: Final = {
    code: 0xFFFD
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
    if chr(code) not in "\t\n"
}


def element(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Return an element. `class_` is written as `class`, and `stroke_width` as `stroke-width`.

    An attribute that is None is left out, and so is a child that is None.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else f"{value:.6g}"
            made.set(name.rstrip("_").replace("_", "-"), clean(text))
    for child in children:
        _add(made, child)
    return made


def _add(parent: Element, child: Child) -> None:
    if child is None:
        return
    if isinstance(child, Element):
        parent.append(child)
    elif isinstance(child, str):
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + clean(child)
        else:
            parent.text = (parent.text or "") + clean(child)
    else:
        for one in child:
            _add(parent, one)


def clean(text: str) -> str:
    """Return a text without characters that no document may have."""
    return text.translate(_FORBIDDEN)


def as_html(root: Element) -> str:
    """Return the document of a root element."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"
