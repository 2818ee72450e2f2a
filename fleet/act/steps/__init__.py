"""The steps of a plan: one module for each kind, each written as "make it so" over observed slots.

A step that is performed again, by whoever picks the change up, does only what is missing. What it
must know for that stands in the change, as the kind's own memory (`step_memory`); what it decides
over slots and slot targets are a function without I/O. Reading downward: `performer` walks a plan's
steps, `kinds` says which module performs which, `handover` and `rolling_batch` roll by way of
`open_slots`, `leave_slots` and `canary`; `receipts` tells what a step cost; all of them work
through `work`.
"""
