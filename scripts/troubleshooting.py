"""Write docs/troubleshooting.md from the table of known problems."""

from pathlib import Path

from corerl_check import problems

if __name__ == "__main__":
    (Path(__file__).resolve().parent.parent / problems.PAGE).write_text(problems.page())
