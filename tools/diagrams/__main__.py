"""Draw all diagrams."""

from pathlib import Path

from tools.diagrams.pictures import PICTURES

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"


def main() -> None:
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
        print(f"docs/images/{name}.svg")


main()
