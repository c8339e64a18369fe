"""Pages are made without their pictures here."""

from tests.undrawn import drawn as drawn
from tests.undrawn import undrawn as undrawn
