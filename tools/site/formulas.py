"""Typesets the formulas of docs/methods.md as HTML: `w <- w - lr g` becomes w ← w − lr g, with Greek letters and roots."""

from __future__ import annotations

import re
from html import escape

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "eta": "η", "theta": "θ", "lam": "λ",
    "mu": "μ", "rho": "ρ", "tau": "τ",
}  # fmt: skip
SIGNS = {"<-": "←", ">=": "≥", "<=": "≤", "->": "→", "||": "‖", "-": "−", "*": "·"}
# Names with more than one letter that are symbols all the same. Every other long word is a word, or a hyper-parameter.
SYMBOLS = {"ga": "g", "du": "Δu", "dx": "Δx", "dz": "Δz", "dc": "Δc", "mom": "m"}
TOKEN = re.compile(
    r"'s\b|[A-Za-z]{2,}(?:-[A-Za-z]{2,})+|sqrt\(|<-|->|>=|<=|\|\||\^\([^()]*\)|\^\w+|[A-Za-z]\w*|\d[\d.e-]*|\s+|."
)
SECTION = re.compile(r"^(client and server|client|server|warm-up|survey)(?=[ :])")


def typeset(block: str) -> str:
    """A block of formulas, line by line. Spaces keep the columns of the block."""
    lines = [f'<span class="line">{_line(line)}</span>' for line in block.splitlines()]
    return '<div class="formulas">' + "".join(lines) + "</div>"


def _line(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    text = re.sub(r" {3,}", "   ", line.strip())  # columns of the text file; proportional type has none
    begin = SECTION.match(text)
    head = f"<b>{begin.group()}</b>" if begin else ""
    return "&nbsp;" * (indent if not begin else 0) + head + _formula(text[len(begin.group()) if begin else 0 :])


def _formula(text: str) -> str:
    tokens = TOKEN.findall(text)
    parts: list[str] = []
    roots: list[int] = []  # depth of brackets at which a root ends
    depth = 0
    for token in tokens:
        if token == "sqrt(":
            depth += 1
            roots.append(depth)
            parts.append('√<span class="root">')
        elif token == ")" and roots and roots[-1] == depth:
            roots.pop()
            depth -= 1
            parts.append("</span>")
        else:
            depth += {"(": 1, ")": -1}.get(token, 0)
            parts.append(_token(token))
    return "".join(parts).replace("   ", " &emsp; ")


def _token(token: str) -> str:
    if token[0] == "^":
        return f"<sup>{_formula(token[1:].strip('()'))}</sup>"
    if token[0].isalpha():
        return escape(token) if "-" in token else _name(token)
    return SIGNS.get(token, escape(token))


def _name(word: str) -> str:
    """`beta1` is a letter with an index, `v_hat` has a hat, `lr` and words stay as they are."""
    base, _, index = word.partition("_")
    number = re.fullmatch(r"([a-z]+?)(\d+)", base)
    if number and (number.group(1) in GREEK or len(number.group(1)) == 1):
        base, index = number.group(1), number.group(2) + index
    base = SYMBOLS.get(base, base)
    if base in GREEK or len(base.lstrip("Δ")) == 1:
        letter = f"<i>{GREEK.get(base, base)}</i>"
        if index == "hat":
            return f"<i>{GREEK.get(base, base)}&#770;</i>"
        return letter + (f"<sub>{escape(GREEK.get(index, index))}</sub>" if index else "")
    return escape(word)
