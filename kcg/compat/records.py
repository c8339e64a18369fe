"""`dataclass`, also for the classes of a module that stands in no `sys.modules`.

An exported module begins with this text: who loads it by `importlib.util.module_from_spec` alone, or executes its
source under a name of his own, has it in no `sys.modules`, and there `dataclasses` looks what annotations mean that are
text. In Python 3.11 to 3.14 it fails where there is no module of that name.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **settings: Any) -> Any:
        """`dataclasses.dataclass` of a class whose fields are no `ClassVar`, `InitVar` or `KW_ONLY`."""

        def made(cls: type) -> type:
            name, cls.__module__ = cls.__module__, dataclasses.__name__  # which is there
            try:
                return dataclasses.dataclass(cls, **settings)
            finally:
                cls.__module__ = name

        return made if cls is None else made(cls)
