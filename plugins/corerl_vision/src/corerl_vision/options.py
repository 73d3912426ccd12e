"""Options of data sets; they import no image library."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(frozen=True)
class ShapesOptions:
    """Flags of ``corerl prepare shapes``."""

    train_size: int = option(2000, "pictures for training", ge=1)
    test_size: int = option(200, "pictures for validation", ge=1)
    questions: Literal["both", "colour", "shape"] = option("both", "what is asked about a picture")
    seed: int = option(0, "of the pictures", ge=0)
