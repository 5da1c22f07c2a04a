"""Write the pages that are made from the code and from other pages: ``make docs``."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from lucid_core import seams

DOCS = Path(__file__).parent


def step() -> str:
    """The training step with its seams, from the docstring and table of ``lucid_core.seams``."""
    text = inspect.cleandoc(seams.__doc__ or "")
    title, _, rest = text.partition("\n\n")
    before, _, drawn = rest.partition("::\n\n")
    loop, _, after = drawn.partition("\n\nA seam's body")
    rows = "\n".join(f"| `{path}` | `{binding}` |" for path, binding in seams.SEAMS.items())
    prose = f"A seam's body{after}".replace(":func:`seam`", "`@seam`").replace("``", "`")
    return f"""# {title.removesuffix(".")}

{before.replace(":func:`seam`", "`@seam`").replace("``", "`")}:

```text
{textwrap.dedent(loop)}
```

{prose}

## Seams and their bindings

| seam | binding |
|---|---|
{rows}

Taking a seam: `lucid_core.seams.claim(scope, path, owner, target, replacement)`; `Claim.release()` gives it back.
"""


def decisions() -> str:
    """The list of decision pages, from their titles."""
    pages = sorted(page for page in (DOCS / "decisions").glob("*.md") if page.name != "README.md")
    lines = [f"- [{page.read_text().partition(chr(10))[0].removeprefix('# ')}]({page.name})" for page in pages]
    return "\n".join(
        [
            "# Decisions",
            "",
            "One page for each choice that could have gone another way: what was decided, why, and what was measured.",
            "",
            *lines,
            "",
        ]
    )


PAGES = {DOCS / "step.md": step, DOCS / "decisions" / "README.md": decisions}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
