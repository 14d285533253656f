"""The index arrays of message passing as one record, ``Wiring`` of ``cpp/messages.hpp``."""

from __future__ import annotations

from mssvm.core.library import INT, INTS, RecordType

WIRING = RecordType(
    "wiring",
    dict.fromkeys(
        (
            "var_ptr", "factor_ptr", "state_ptr", "scope_ptr", "scope", "message_at", "order", "near_ptr", "near",
            "slot_factor", "table_at", "scaled_at", "table_of", "mu_at", "family_of",
        ),
        INTS,
    )
    | {"widest": INT, "plan": INT},
)  # fmt: skip
